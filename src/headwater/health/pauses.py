"""Pauses: which sinks or workers are paused, as files in the data folder, which their processes check."""

from pathlib import Path

__all__ = ["Pauses"]


class Pauses:
    """An empty file for each paused part of a kind, in the folder of the kind: ``sinks`` or ``workers``.

    It stays when processes end: the part is paused until it is resumed.
    """

    def __init__(self, folder: Path, kind: str = "sinks") -> None:
        self._folder = folder / kind

    def is_paused(self, name: str) -> bool:
        return self._file(name).exists()

    def pause(self, name: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file(name).touch()

    def resume(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def paused(self) -> list[str]:
        """The names of all that are paused."""
        return sorted(file.name.removesuffix(".paused") for file in self._folder.glob("*.paused"))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.paused"
