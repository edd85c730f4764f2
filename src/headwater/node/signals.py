"""Signals: Ctrl-C and SIGTERM as an event, so that nothing ends in the middle of its work."""

import signal
import threading

__all__ = ["stop_on_signals"]


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of ending the process."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
