"""Parcel: the Python code that executors on other machines need, as one zip: this package, and what stands beside the application file."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import headwater
from headwater.errors import UsageError

__all__ = ["pack"]

FILES_MAX = 10_000
"""More are no application's: its file stands in a folder of something else."""


def pack(zip_file: Path, application: Path | None, files_max: int = FILES_MAX) -> Path:
    """Writes the zip: all modules of the package and, if there is an application, those in its folder and in packages below it.

    Only Python modules: other files go with the option ``spark.files``, libraries belong to the Python of the workers.
    """
    package = Path(headwater.__file__).parent
    found = [(file, Path(package.name) / file.relative_to(package)) for file in _modules(package)]
    if application is not None:
        found += [(file, file.relative_to(application)) for file in _modules(application)]
    if len(found) > files_max:
        raise UsageError(
            f"the folder of the application, {application}, has too many Python files to be sent to the workers",
            got=str(len(found)),
            expected=f"at most {files_max}",
            hint="put the application file and its modules into a folder of their own",
        )
    with zipfile.ZipFile(zip_file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        for file, name in found:
            out.write(file, name)
    return zip_file


def _modules(folder: Path) -> Iterator[Path]:
    """The Python files that can be imported from a folder: no hidden folder, no virtual environment, no name that Python cannot say."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name.isidentifier() and not (path / "pyvenv.cfg").exists():
                yield from _modules(path)
        elif path.suffix == ".py":
            yield path
