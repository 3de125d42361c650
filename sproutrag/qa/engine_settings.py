"""How vLLM is run here, wherever it runs: in a batch worker, or behind Ray Serve."""

from typing import Any

CPU_CONTEXT = 8192  # tokens; a longer prompt takes a CPU minutes
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 43,000 tokens of the 0.5B model in float32
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other processes have work to do on these cores too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def engine_arguments(*, on_gpu: bool, context_tokens: int | None) -> dict[str, Any]:
    """By vLLM's names. context_tokens: None takes the model's own limit.

    float32 on a CPU: bfloat16 is ten times slower there (AVX2). Eager mode needs no compiler. Weights are
    read from safetensors only: other formats can run code.
    """
    return {
        "dtype": "auto" if on_gpu else "float32",
        "max_model_len": context_tokens,
        "enforce_eager": not on_gpu,
        "enable_prefix_caching": True,
        "max_num_seqs": 64 if on_gpu else 8,
        "load_format": "safetensors",
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
