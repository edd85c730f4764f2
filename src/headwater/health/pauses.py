"""Pauses: which sinks or workers are paused, as files in the data folder, which their processes check."""

from collections.abc import Iterable
from pathlib import Path

__all__ = ["Pauses"]


class Pauses:
    """An empty file for each paused part of a kind, in the folder of the kind: ``sinks`` or ``workers``.

    It stays when processes end: the part is paused until it is resumed. Beside it is one for each part that
    has run here, so that a name can be checked without its application.
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

    def note(self, names: Iterable[str]) -> None:
        """These run here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (self._folder / f"{name}.seen").touch()

    def seen(self) -> list[str]:
        """The names of all that have run here."""
        return sorted(file.name.removesuffix(".seen") for file in self._folder.glob("*.seen"))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.paused"
