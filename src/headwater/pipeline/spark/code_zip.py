"""Code zip: the Python code for executors on other machines: this package, and the application's folder."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import headwater
from headwater.errors import UsageError

__all__ = ["pack"]

FILES_MAX = 10_000
"""With more files the folder is not that of one application."""


def pack(zip_file: Path, application: Path | None, files_max: int = FILES_MAX) -> Path:
    """Writes the zip: all modules of the package, and those in the folder of the application.

    Only Python modules: other files are sent by the option ``spark.files``, libraries are installed for the
    workers.
    """
    package = Path(headwater.__file__).parent
    files = [(file, Path(package.name) / file.relative_to(package)) for file in _modules(package)]
    if application is not None:
        files += [(file, file.relative_to(application)) for file in _modules(application)]
    if len(files) > files_max:
        raise UsageError(
            f"the folder of the application, {application}, has too many Python files for the workers",
            got=str(len(files)),
            expected=f"at most {files_max}",
            hint="put the application file and its modules into a folder of their own",
        )
    with zipfile.ZipFile(zip_file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        for file, name in files:
            out.write(file, name)
    return zip_file


def _modules(folder: Path) -> Iterator[Path]:
    """The Python files that can be imported from a folder; no hidden folders, no virtual environments."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name.isidentifier() and not (path / "pyvenv.cfg").exists():
                yield from _modules(path)
        elif path.suffix == ".py":
            yield path
