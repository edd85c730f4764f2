"""Function digest: a digest of what a Python function computes, the same in every process.

It covers the instructions of the function and everything that they reach: constants, defaults, the variables
of its closure, and the globals that it names, including the code of functions and classes. Installed
packages count by name and version, the modules of the application by the code that is used of them. Names of
functions and of local variables, docstrings, annotations and lines do not count. Another minor version of
Python compiles to other instructions, which is another digest.
"""

import copyreg
import dis
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

from pyspark import cloudpickle
from pyspark.core import broadcast
from pyspark.core.broadcast import Broadcast

__all__ = ["fingerprint", "unpickled"]

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
SETS = (set, frozenset)
CONTAINERS = (tuple, list, dict, *SETS)
GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
IMPORT = "IMPORT_NAME"
CACHE = type(cache(len))
METHODS = (FunctionType, staticmethod, classmethod, property)
ALSO = {"__slots__"}
"""Names with two underscores that count of a class; the others come from Python and from pickling."""


def fingerprint(value: Any) -> str:
    """The digest of a function, or of any other value that can be sent to a worker."""
    return _Walk().digest(value).hex()


def unpickled(command: bytes, broadcasts: Mapping[int, str] | None = None) -> Any:
    """The function that Spark sends to its workers as ``command``.

    ``broadcasts``: files of variables, by id.
    """
    own = {number: Broadcast(path=path) for number, path in (broadcasts or {}).items()}
    registry = broadcast._broadcastRegistry  # noqa: SLF001
    before = dict(registry)
    registry.update(own)
    try:
        value = cloudpickle.loads(command)
        if isinstance(value, Broadcast):  # too large for the command itself
            value = cloudpickle.loads(value.value)
    finally:
        registry.clear()
        registry.update(before)
    return value[0] if isinstance(value, tuple) else value


class _Walk:
    """Walks a value and all of its parts.

    A value that contains itself is replaced by its distance from there.
    """

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._open: list[int] = []
        self._alive: list[Any] = []
        """Values whose ids are known: while they live, no other value gets these ids."""

    def digest(self, value: Any) -> bytes:
        if isinstance(value, PLAIN) and type(value) in PLAIN:
            return _hashed(type(value).__name__, repr(value))
        cached = self._done.get(id(value))
        if cached is not None:
            return cached
        if id(value) in self._open:
            return _hashed("above", str(len(self._open) - self._open.index(id(value))))
        self._open.append(id(value))
        self._alive.append(value)
        digest = _hashed(*self._parts(value))
        self._open.pop()
        self._done[id(value)] = digest
        return digest

    def _parts(self, value: Any) -> Iterator[str | bytes]:
        """The parts of a value: code first, then data."""
        match value:
            case FunctionType():
                yield from self._function(value)
            case CodeType():
                yield from self._code(value, {})
            case MethodType():
                yield from self._all("method", (value.__func__, value.__self__))
            case BuiltinFunctionType():
                own = None if isinstance(value.__self__, ModuleType) else value.__self__
                yield from self._all(f"builtin {value.__module__} {value.__qualname__}", (own,))
            case ModuleType():
                yield from self._module(value, ())
            case type():
                yield from self._class(value)
            case CellType():
                yield from self._cell(value)
            case staticmethod() | classmethod():
                yield from self._all(type(value).__name__, (value.__func__,))
            case property():
                yield from self._all("property", (value.fget, value.fset, value.fdel))
            case _:
                yield from self._data(value)

    def _data(self, value: Any) -> Iterator[str | bytes]:
        kind = type(value)
        if kind in CONTAINERS and all(type(item) in PLAIN for item in _items(value)):
            texts = map(repr, _items(value))  # a table may have a million entries
            yield kind.__name__
            yield from sorted(texts) if kind in SETS else texts
        elif isinstance(value, Broadcast):
            yield self.digest(value.value)
        elif isinstance(value, Enum):
            yield from self._all(f"member {value.name}", (kind,))
        elif kind in (tuple, list):
            yield from self._all(kind.__name__, value)
        elif kind is dict:
            yield from self._all("dict", _items(value))
        elif kind in SETS:
            yield kind.__name__
            yield from sorted(map(self.digest, value))
        else:
            yield from self._instance(value)

    def _all(self, kind: str, values: Iterable[Any]) -> Iterator[str | bytes]:
        yield kind
        yield from map(self.digest, values)

    def _function(self, function: FunctionType) -> Iterator[str | bytes]:
        home = _installed(function.__module__ or "")
        if home is None:
            yield "function"
            yield from self._code(function.__code__, function.__globals__)
            yield self.digest(function.__defaults__)
            yield self.digest(function.__kwdefaults__)
        else:
            yield from ("installed", home, function.__qualname__)
        for cell in function.__closure__ or ():
            yield from self._cell(cell)

    def _cell(self, cell: CellType) -> Iterator[str | bytes]:
        try:
            yield self.digest(cell.cell_contents)
        except ValueError:
            yield "empty"

    def _code(self, code: CodeType, names: Mapping[str, Any]) -> Iterator[str | bytes]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        yield from ("code", repr(counts), repr(arguments), code.co_exceptiontable)
        for instruction in dis.get_instructions(code):
            yield instruction.opname
            if instruction.opcode in dis.hasconst:
                yield from self._constant(instruction.argval, names)
            elif instruction.opname in GLOBALS:
                yield from self._global(instruction.argval, names, code.co_names)
            elif instruction.opname == IMPORT:
                yield from self._imported(instruction.argval, code.co_names)
            elif instruction.opcode in dis.hasname:
                yield str(instruction.argval)
            else:
                yield str(instruction.arg)

    def _constant(self, value: Any, names: Mapping[str, Any]) -> Iterator[str | bytes]:
        if isinstance(value, CodeType):
            yield from self._code(value, names)
        else:
            yield self.digest(value)

    def _global(self, name: str, names: Mapping[str, Any], used: tuple[str, ...]) -> Iterator[str | bytes]:
        value = names.get(name, self)
        if isinstance(value, ModuleType):
            yield from self._module(value, used)
        else:
            yield name if value is self else self.digest(value)

    def _imported(self, name: str, used: tuple[str, ...]) -> Iterator[str | bytes]:
        """A module that the function imports.

        One of the application is imported here too, since its code counts.
        """
        home = _installed(name)
        if home is not None:
            yield from ("installed", home, name)
            return
        try:
            yield from self._module(importlib.import_module(name), used)
        except Exception:  # noqa: BLE001 (only the workers may have it)
            yield name

    def _module(self, module: ModuleType, used: Iterable[str]) -> Iterator[str | bytes]:
        """A module; of one of the application, all that has a name in ``used``."""
        home = _installed(module.__name__)
        yield from ("module", module.__name__, home or "")
        if home is None and id(module) not in self._open:
            self._open.append(id(module))
            for name in sorted(set(used) & vars(module).keys()):
                value = vars(module)[name]
                yield name
                yield from (
                    self._module(value, used) if isinstance(value, ModuleType) else [self.digest(value)]
                )
            self._open.pop()

    def _class(self, kind: type) -> Iterator[str | bytes]:
        home = _installed(kind.__module__)
        yield from ("class", kind.__qualname__, home or "")
        if home is None:
            yield from map(self.digest, kind.__bases__)
            for name, value in sorted(vars(kind).items()):
                own = name in ALSO or not name.startswith(("__", "_abc_"))
                if own or isinstance(value, METHODS):
                    yield from (name, self.digest(value))

    def _instance(self, value: Any) -> Iterator[str | bytes]:
        yield self.digest(type(value))
        if isinstance(value, CACHE):
            yield self.digest(value.__wrapped__)
            return
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 (a value that cannot be sent to a worker does not count there)
            return
        if isinstance(reduced, str):
            yield reduced
            return
        for part in reduced[:3]:
            yield self.digest(part)
        for items in reduced[3:5]:
            yield from map(self.digest, items or ())


def _items(container: Any) -> Iterator[Any]:
    """The items of a container; of a dict its keys and values in turn."""
    return chain.from_iterable(container.items()) if isinstance(container, dict) else iter(container)


def _hashed(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data) + data)
    return digest.digest()


@cache
def _installed(module: str) -> str | None:
    """The version of the package that a module belongs to; None for one of the application."""
    top = module.partition(".")[0]
    if top in ("", "__main__"):
        return None
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return ""
    loaded = sys.modules.get(top)
    try:
        spec = getattr(loaded, "__spec__", None) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
    homes = [Path(sysconfig.get_path(scheme)) for scheme in ("purelib", "platlib")]
    if not any(Path(place).is_relative_to(home) for place in places if place for home in homes):
        return None
    version = getattr(loaded, "__version__", None)
    try:
        return str(version) if version is not None else importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return "?"
