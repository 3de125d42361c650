"""`sproutrag serve`: the same applications on this machine, on a Ray of their own, or on RAY_ADDRESS."""

import io
import logging
import os
import re
import signal
import socket
import sys
import threading
from typing import Any, TextIO

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

from serve.app import build_app, with_llm
from serve.corpora import APP
from serve.engines import LLM_APP
from serve.keys import new_key
from serve.settings import Settings, read_settings
from sproutrag.index import TreeIndex
from sproutrag.private_ray import ray_on_demand
from sproutrag.qa.models import is_url
from sproutrag.qa.options import ServeOptions

FEWEST_CPUS = 4  # that Ray is told of: each replica reserves one; on a small machine they share the cores


OURS = re.compile(r'(?:serve: |\{"time"|\d{4}-\d\d-\d\dT).*')


def main(options: ServeOptions) -> None:
    """Until Ctrl-C. Search is there as soon as the retriever is; the LLM follows."""
    settings = with_llm(read_settings(options.config or "", **said(options)))
    TreeIndex.open(settings.db, encoder=settings.encoder or None).close()  # told here, not by a replica
    for chatty in ("ray.serve", "ray.llm"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with ray_on_demand(logs=True, num_cpus=max(os.cpu_count() or 1, FEWEST_CPUS)) as start:
        shown = sys.stdout, sys.stderr
        tell("starting Ray")
        start()
        if os.environ.get("SPROUTRAG_DEBUG") != "1":
            sys.stdout = sys.stderr = OnlyOurs(sys.stderr)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a container or a unit is stopped
        try:
            run(settings)
        except KeyboardInterrupt:
            tell("stopping")
        finally:
            stop()
            sys.stdout, sys.stderr = shown


def said(options: ServeOptions) -> dict[str, Any]:
    """What the command line sets; the rest is the file's, the environment's or default."""
    given = {
        "db": options.db,
        "llm": options.llm,
        "encoder": options.encoder,
        "host": options.host,
        "port": options.port,
        "keys": options.keys,
    }
    return {name: value for name, value in given.items() if value is not None}


def run(settings: Settings) -> None:
    quiet = LoggingConfig(log_level=logging.WARNING, enable_access_log=False)
    port = settings.port or free_port(settings.host)
    http = HTTPOptions(host=settings.host, port=port)
    serve.start(http_options=http, proxy_location="HeadOnly", logging_config=quiet)
    tell("starting the retriever")
    serve.run(build_app(settings), name=APP, route_prefix="/", logging_config=quiet)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    tell(f"search is ready: http://{host}:{port}/")
    if is_url(settings.llm):
        tell(f"questions go to {settings.llm}")
    else:
        threading.Thread(target=start_llm, args=(settings, quiet), daemon=True).start()
    threading.Event().wait()


def free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as place:
        return place.getsockname()[1]


def stop() -> None:
    """Only what this command started: a cluster's other applications go on."""
    if os.environ.get("RAY_ADDRESS"):
        for name in (APP, LLM_APP):
            serve.delete(name)
    else:
        serve.shutdown()


def start_llm(settings: Settings, quiet: LoggingConfig) -> None:
    """Fetched and loaded while searches are served already."""
    tell(f"loading {settings.llm}; questions are answered when it is there (a minute or more)")
    try:
        from serve.llm import build_llm  # takes ten seconds, which no search should wait for

        serve.run(build_llm(settings), name=LLM_APP, route_prefix=None, logging_config=quiet)
        tell("questions are answered")
    except Exception as error:  # the boundary of this thread: search goes on
        tell(f"no questions: {settings.llm} did not start: {type(error).__name__}: {error}")


def make_key(name: str) -> str:
    """Tells the key once, and what to add to the file of keys."""
    key, entry = new_key(name)
    print(f"key of {name}, shown once: {key}", file=sys.stderr)
    print("add to the file of keys:", file=sys.stderr)
    return entry


class OnlyOurs(io.TextIOBase):
    """Of what Ray relays from its processes only our log; all of it with SPROUTRAG_DEBUG=1."""

    def __init__(self, onward: TextIO) -> None:
        self.onward = onward
        self.begun = ""

    def write(self, text: str) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            if found := OURS.search(line):
                self.onward.write(found[0] + "\n")
        self.onward.flush()
        return len(text)


def tell(line: str) -> None:
    print(f"serve: {line}", file=sys.stderr, flush=True)
