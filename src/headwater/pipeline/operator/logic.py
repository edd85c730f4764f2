"""What an operator is: logic over rows, state and a moment, without Spark."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import PLAIN
from headwater.pipeline.time.watermark import Moment

__all__ = ["GROUPS", "Applied", "InsertOnly", "Logic", "Spec"]


GROUPS = {"count", "group", "sessions", "sliding"}
"""Kinds of logics that emit the key of each group instead of its rows."""


class Applied(NamedTuple):
    """The output of a logic for one batch: rows, changes of its state (None: removed), next time-out."""

    rows: pa.Table
    changes: Delta
    open: int | None = None
    ends: tuple[int, ...] = ()
    """When published rows become complete (``pipeline/time/open_ends.py``), without those that wait."""


class Logic(Protocol):
    """Decides; does no I/O.

    Equal rows in any order, with equal state and an equal moment, give an equal answer.

    Rows have a column ``_key``, the text of their key. A logic is sent to Spark's workers, so it is small and
    frozen.
    """

    @property
    def kind(self) -> str: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def timed(self) -> str:
        """The time that its time-outs follow: 'watermark', 'clock', or '' if it has none.

        With time-outs it also runs without rows.
        """
        ...

    @property
    def keeps(self) -> bool:
        """Whether it reads state. Otherwise its changes are only written."""
        ...

    @property
    def output_delay(self) -> str:
        """How much older than the watermark its rows may be, if it emits them only after a delay; else ''."""
        ...

    @property
    def takes_retractions(self) -> bool:
        """Whether its input may have a ``_weight``, which is -1 for retracted rows.

        Otherwise such input is refused.
        """
        ...

    @property
    def key_only(self) -> tuple[str, ...]:
        """Input columns used only to compute the key; they are not sent to Python."""
        ...

    @property
    def layout(self) -> str:
        """How its entries belong to keys (``state/layouts.py``); '' if each entry is a key and its value."""
        ...

    def schema(self, rows: StructType) -> StructType:
        """The columns of its output for an input with these columns."""
        ...

    def definition(self) -> str:
        """The text by which a view notices that the operator has changed.

        Views store it, so it never changes by itself.
        """
        ...

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied: ...


class Spec(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The defaults of most logics: no time-outs, retracted rows allowed, one entry for each key."""

    stored_names: ClassVar[Mapping[str, str]] = {}
    """Names of this class and its fields in stored definitions, where they differ: they were renamed
    since."""

    timed: str = ""
    keeps: bool = True
    output_delay: str = ""
    takes_retractions: bool = True
    key_only: tuple[str, ...] = ()
    layout: str = PLAIN

    def definition(self) -> str:
        """Like repr(), but with the stored names."""
        names = {"output_delay": "behind", **self.stored_names}
        fields = [
            f"{names.get(field.name, field.name)}={getattr(self, field.name)!r}"
            for field in msgspec.structs.fields(self)
            if getattr(self, field.name) is not field.default  # as repr() omits them
        ]
        kind = type(self).__name__
        return f"{names.get(kind, kind)}({', '.join(fields)})"


class InsertOnly(Spec, frozen=True, kw_only=True):
    """A logic that treats every row as inserted for good: input with retracted rows is refused."""

    takes_retractions: bool = False
