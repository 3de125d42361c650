import os
import signal

import pytest

from sproutrag.interruption import heed, remembered


def test_an_interrupt_that_a_library_swallowed_still_ends_the_job() -> None:
    with remembered():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            pass  # what the library does
        with pytest.raises(KeyboardInterrupt):
            heed()
    with remembered():
        heed()  # the next job is not interrupted


def test_the_handler_of_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with remembered():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
