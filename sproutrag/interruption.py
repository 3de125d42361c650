"""Ctrl-C that cannot get lost: libraries swallow a KeyboardInterrupt that hits them in a bad place."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

asked = threading.Event()


@contextmanager
def remembered() -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt as ever, and `heed` raises it again where it got lost."""
    asked.clear()
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt(number: int, frame: FrameType | None) -> None:
    asked.set()
    raise KeyboardInterrupt


def heed() -> None:
    """For long loops: stop here if Ctrl-C was pressed."""
    if asked.is_set():
        raise KeyboardInterrupt
