"""Signals that ask a stream to stop, whatever its thread is doing when they arrive."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from ebbtide.runtime.stopping import stop_on_signals


@pytest.mark.timeout(30)  # an event with a lock waits for itself
def test_a_signal_may_come_at_any_line_of_a_wait() -> None:
    line = lines = 0
    while line <= lines:
        lines = 0

        def trace(_frame: FrameType, _event: str, _argument: Any) -> Any:
            nonlocal lines
            lines += 1
            if lines == line:  # noqa: B023 - it is called in this round only
                signal.raise_signal(signal.SIGTERM)
            return trace

        with stop_on_signals() as (stop, _):
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                stop.wait(0.001)
            finally:
                sys.settrace(before)
            assert stop.is_set() == (0 < line <= lines), line
            assert stop.wait(0) == stop.is_set()
        line += 1
    assert line > 3


def test_a_signal_ends_a_long_wait() -> None:
    main = threading.main_thread().ident
    assert main is not None
    with stop_on_signals() as (stop, _):
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGTERM)).start()
        began = time.monotonic()
        assert stop.wait(60)
        assert time.monotonic() - began < 30


def test_a_second_interrupt_stops_at_once() -> None:
    with stop_on_signals() as (stop, _):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
