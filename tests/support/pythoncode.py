"""Python of documents, checked against the package that it uses; nothing is run.

A block must parse; what it imports from Headwater exists; names that are ours have the attributes that they are asked for; calls
of ours take the arguments that they are given.
"""

import ast
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import headwater as hw
from headwater import testing

assert testing


class Instance(typing.NamedTuple):
    """Something of a type, in a program that is not run."""

    type: type


class Code:
    """The names of one page; later blocks use those of earlier ones."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"hw": hw, "headwater": hw, "app": Instance(hw.App)}
        self._imported: set[str] = set()

    def faults(self, source: str) -> list[str]:
        """What is wrong with a block."""
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            return [f"line {error.lineno}: {error.msg}"]
        found: list[str] = []
        for node in _in_order(tree):
            try:
                self._look_at(node)
            except LookupError as error:
                line = node.context_expr.lineno if isinstance(node, ast.withitem) else node.lineno
                found.append(f"line {line}: {error.args[0]}")
        return list(dict.fromkeys(found))

    def _look_at(self, node: Any) -> None:
        match node:
            case ast.Import(names=names):
                for each in names:
                    self._import(each.name, each.asname)
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("headwater"):
                home = _module(module)
                for each in names:
                    self._names[each.asname or each.name] = _submodule(home, each.name) or self._member(
                        home, each.name
                    )
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._names.pop(name, None)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._bind(name, self._value(value))
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
                self._bind(name, _entered(self._value(value)))
            case ast.Attribute():
                self._value(node)
            case ast.Call():
                self._check_call(node)

    def _bind(self, name: str, value: Any) -> None:
        if value is None:
            self._names.pop(name, None)
        else:
            self._names[name] = value

    def _import(self, name: str, alias: str | None) -> None:
        if name.partition(".")[0] != "headwater":
            self._bind(alias or name.partition(".")[0], None)
            return
        module = _module(name)
        self._imported.add(name)
        self._names[alias or "headwater"] = module if alias else hw

    def _value(self, node: ast.expr) -> Any:
        """What an expression is, if it is known: a module, a class, a function of ours, or an instance."""
        match node:
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.Attribute(value=inner, attr=name):
                owner = self._value(inner)
                return None if owner is None else self._member(owner, name)
            case ast.Call(func=inner):
                called = self._value(inner)
                return Instance(called) if isinstance(called, type) else _returned(called)
        return None

    def _member(self, owner: Any, name: str) -> Any:
        if isinstance(owner, types.ModuleType):
            full = f"{owner.__name__}.{name}"
            if full in self._imported:
                return importlib.import_module(full)
            if name not in getattr(owner, "__all__", (name,)) or not hasattr(owner, name):
                raise LookupError(f"{owner.__name__} has no {name}, or the block does not import it")
            return getattr(owner, name)
        if isinstance(owner, Instance):
            if hasattr(owner.type, name):
                return _Bound(getattr(owner.type, name))
            if name in typing.get_type_hints(owner.type):
                return None
            raise LookupError(f"{owner.type.__name__} has no {name}")
        return None

    def _check_call(self, node: ast.Call) -> None:
        called = self._value(node.func)
        if called is None or any(isinstance(each, ast.Starred) for each in node.args):
            return
        first = (None,) if isinstance(called, _Bound) else ()
        called = called.function if isinstance(called, _Bound) else called
        if not callable(called) or any(each.arg is None for each in node.keywords):
            return
        try:
            inspect.signature(called).bind(
                *first, *node.args, **{str(each.arg): each for each in node.keywords}
            )
        except TypeError as error:
            raise LookupError(f"{ast.unparse(node.func)}(…): {error}") from None


class _Bound(typing.NamedTuple):
    """A method of an instance."""

    function: Any


def _module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise LookupError(f"there is no module {name}") from None


def _submodule(home: types.ModuleType, name: str) -> types.ModuleType | None:
    """What ``from package import module`` gives."""
    full = f"{home.__name__}.{name}"
    return importlib.import_module(full) if hasattr(home, "__path__") and find_spec(full) else None


def _returned(called: Any) -> Any:
    """What a function of ours returns, by its annotation."""
    function = getattr(called, "function", called)
    if not inspect.isfunction(function):
        return None
    try:
        kind = typing.get_type_hints(function).get("return")
    except NameError:
        return None
    if isinstance(kind, type) and kind.__module__.startswith("headwater"):
        return Instance(kind)
    return _Context(typing.get_args(kind)[0]) if typing.get_args(kind) else None


class _Context(typing.NamedTuple):
    """What a ``with`` statement enters."""

    gives: Any


def _entered(value: Any) -> Any:
    if isinstance(value, _Context):
        return Instance(value.gives) if isinstance(value.gives, type) else None
    if isinstance(value, Instance) and hasattr(value.type, "__enter__"):
        return value
    return None


def _in_order(tree: ast.AST) -> Iterator[Any]:
    """The nodes of a tree as they are written; names are bound after their values were looked at."""
    for child in ast.iter_child_nodes(tree):
        yield from _in_order(child)
    if hasattr(tree, "lineno") or isinstance(tree, ast.withitem):
        yield tree


def mention_faults(text: str) -> list[str]:
    """What is wrong with a call or a name in a sentence, which may leave arguments out: `hw.enrich(as_of=)`.

    `headwater.toml` and `headwater.ticks` are a file and a topic: only modules of ours are looked at.
    """
    names, _, arguments = text.partition("(")
    path = names.strip().split(".")
    value: Any = hw
    if any(not name.isidentifier() or name.isupper() for name in path):
        return []
    for name in path[1:]:
        below = (
            _submodule(value, name)
            if path[0] == "headwater" and isinstance(value, types.ModuleType)
            else None
        )
        if below is None and not hasattr(value, name):
            return [] if value is hw and path[0] == "headwater" else [f"{text}: there is no {name}"]
        value = below or getattr(value, name)
    try:
        known = inspect.signature(value).parameters.values() if callable(value) else []
    except ValueError:
        return []
    if any(each.kind is each.VAR_KEYWORD for each in known):
        return []
    given = re.findall(r"(?:^|[(,]\s*)([a-z_]+)=", arguments)
    return [f"{text}: no keyword {each}" for each in given if each not in {one.name for one in known}]
