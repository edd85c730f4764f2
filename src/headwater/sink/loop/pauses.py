"""Pauses: which sinks are paused, as files in the data folder. Every process that runs a sink checks them."""

from pathlib import Path

__all__ = ["Pauses"]


class Pauses:
    """An empty file for each paused sink.

    It stays when processes end: the sink is paused until it is resumed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sinks"

    def is_paused(self, sink: str) -> bool:
        return self._file(sink).exists()

    def pause(self, sink: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file(sink).touch()

    def resume(self, sink: str) -> None:
        self._file(sink).unlink(missing_ok=True)

    def paused(self) -> list[str]:
        """The names of all paused sinks."""
        return sorted(file.name.removesuffix(".paused") for file in self._folder.glob("*.paused"))

    def _file(self, sink: str) -> Path:
        return self._folder / f"{sink}.paused"
