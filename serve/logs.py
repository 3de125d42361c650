"""Structured logs: one JSON object per line on standard error, with the request's id where there is one.

Questions, keys and document text are never logged.
"""

import contextvars
import json
import logging
import sys
import time
from typing import Any

from serve.settings import Settings

REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
LOGGER = logging.getLogger("sproutrag.serve")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        return json.dumps(facts | vars(record).get("facts", {}), ensure_ascii=False, default=str)


class Words(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = vars(record).get("facts", {})
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        return f"{stamp(record.created)} {record.getMessage()} {told}".rstrip()


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def start_logging(settings: Settings) -> None:
    """Once per process; a second call changes nothing."""
    if LOGGER.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.json_logs else Words())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def log(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """`facts` hold no secrets: callers pass numbers, names and ids."""
    if request_id := REQUEST_ID.get():
        facts = {"request_id": request_id} | facts
    LOGGER.log(level, event, extra={"facts": facts})
