"""A virtual environment as ``pip install headwater`` makes it: this one's packages, but none that only tests need.

Dependencies are links to what is installed here, so nothing is fetched; ``pip`` installs Headwater from a wheel of
this source, and finds pytest in a folder of wheels, as it would find it in an index.
"""

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["PlainVenv"]

ROOT = Path(__file__).parents[2]
LATER = "pytest"
"""What a newcomer installs besides."""


class PlainVenv:
    """An environment in a folder. ``path`` is its folder of programs, ``wheels`` what its pip finds."""

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.wheels.mkdir(parents=True)
        build = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(self.wheels), str(ROOT)]
        subprocess.run([sys.executable, "-m", *build], check=True)
        venv.create(folder / "venv", with_pip=True)
        self.path = folder / "venv" / "bin"
        (self._packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        plain = closure(_built(self.wheels))
        for installed in plain.values():
            self._link(installed)
        for name, installed in closure(distribution(LATER)).items() | {(LATER, distribution(LATER))}:
            if name not in plain:
                repack(installed, self.wheels)

    def environ(self) -> dict[str, str]:
        """The variables of a shell in which it is activated, whose pip asks no index."""
        plain = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HEADWATER_", "PIP_", "PYTHON", "PYTEST"))
        }
        return plain | {
            "PATH": f"{self.path}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_INDEX": "1",
        }

    def _link(self, installed: Distribution) -> None:
        for name in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            place = self._packages / name
            if not place.exists():
                place.symlink_to(Path(str(installed.locate_file(name))))


def closure(first: Distribution) -> dict[str, Distribution]:
    """What a distribution needs, without extras."""
    needed: dict[str, Distribution] = {}
    wave = [first]
    while wave:
        for name in _requires(wave.pop()):
            if name not in needed:
                needed[name] = distribution(name)
                wave.append(needed[name])
    return needed


def repack(installed: Distribution, folder: Path) -> None:
    """Writes an installed package that has no compiled parts as a wheel."""
    name = installed.metadata["Name"].replace("-", "_")
    with zipfile.ZipFile(folder / f"{name}-{installed.version}-py3-none-any.whl", "w") as wheel:
        for file in installed.files or ():
            if file.parts[0] != ".." and "__pycache__" not in file.parts:
                wheel.write(str(installed.locate_file(file)), str(file))


def _requires(installed: Distribution) -> Iterator[str]:
    for text in installed.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name.lower().replace("_", "-")


def _built(wheels: Path) -> Distribution:
    (wheel,) = wheels.glob("headwater-*.whl")
    (folder,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    return PathDistribution(folder)
