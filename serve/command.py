"""`sproutrag serve`: the same application on this machine, with a Ray of its own."""

import os
import threading
from typing import Any

from ray import serve

from serve.app import build_app, with_llm
from serve.corpora import APP
from serve.settings import read_settings
from sproutrag.index import TreeIndex
from sproutrag.private_ray import ray_on_demand

FEWEST_CPUS = 3  # that Ray is told of: replicas reserve one each, on a small machine they share the cores


def main(config: str, **given: Any) -> None:
    """Until Ctrl-C. Search is there as soon as the retriever is; the LLM follows."""
    settings = with_llm(read_settings(config, **given))
    TreeIndex.open(settings.db, encoder=settings.encoder or None).close()  # told here, not by a replica
    cpus = max(os.cpu_count() or 1, FEWEST_CPUS)
    with ray_on_demand(num_cpus=cpus) as start:
        say("starting Ray")
        start()
        serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config=quiet())
        say("starting the retriever")
        serve.run(build_app(settings), name=APP, route_prefix="/", blocking=False, logging_config=quiet())
        say(f"search is ready: http://{shown(settings.host)}:{settings.port}")
        threading.Thread(target=start_llm, args=(settings,), daemon=True).start()
        wait()
        say("stopping")
        serve.shutdown()
