"""A sink's loop in a thread of a test."""

import threading

from headwater.sink.loop.loop import Loop


class Running:
    """A loop in a thread, and what ended it."""

    def __init__(self, made: Loop) -> None:
        self.loop = made
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:  # noqa: BLE001  looked at by the test
            self.error = error

    def stop(self) -> None:
        self.loop.stop()
        self._thread.join(120)
        assert not self._thread.is_alive()
