"""Jobs: Ray Data pipelines and benchmarks over the sproutrag library."""
