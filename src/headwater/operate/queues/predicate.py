"""Predicate: which messages are meant, by a field of their JSON: ``country = DE``, ``order.total >= 100``."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from headwater.errors import UsageError
from headwater.record import Record

__all__ = ["Predicate", "chooser"]

FORM = re.compile(r"\s*([^\s=<>!]+)\s*(=|!=|<=|>=|<|>)\s*(.*?)\s*", re.DOTALL)
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Predicate(NamedTuple):
    """Compares one field of a JSON object with a value."""

    path: tuple[str, ...]
    sign: str
    value: Any

    @staticmethod
    def parse(text: str) -> "Predicate":
        """Reads ``FIELD = VALUE``; a value that is not JSON is a text."""
        match = FORM.fullmatch(text)
        if match is None or not match[3]:
            raise UsageError(
                "--where is wrong", got=repr(text), expected="'field = value', with one of = != < <= > >="
            )
        return Predicate(tuple(match[1].split(".")), match[2], _value(match[3]))

    def matches(self, message: bytes | None) -> bool:
        """Whether the message is a JSON object that has the field, and the comparison holds."""
        try:
            field = msgspec.json.decode(message or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        for name in self.path:
            if not isinstance(field, dict) or name not in field:
                return False
            field = field[name]
        if _kind(field) != _kind(self.value):
            return self.sign == "!="
        try:
            return OPERATORS[self.sign](field, self.value)
        except TypeError:  # lists and objects have no order
            return False


def chooser(key: str | None, where: str | None) -> Callable[[Record], bool] | None:
    """What fits a key and a predicate; None if there is neither."""
    if key is None and where is None:
        return None
    predicate = None if where is None else Predicate.parse(where)

    def fits(record: Record) -> bool:
        if key is not None and record.key != key.encode():
            return False
        return predicate is None or predicate.matches(record.value)

    return fits


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _kind(value: Any) -> type:
    """Numbers are of one kind, and truth is no number."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)
