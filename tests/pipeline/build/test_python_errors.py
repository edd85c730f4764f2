"""Which errors of a query are a record's: of a Python function by the text that Spark passes on, and Spark's own."""

import decimal
import json
import traceback

import pytest
from pyspark.errors import PySparkException

from headwater.config import Settings
from headwater.pipeline.build.python_errors import is_of_a_record, raised
from headwater.pipeline.engine.engine import Fault
from headwater.pipeline.engine.spark_engine import Spark


class Service(Exception):  # noqa: N818
    """As drivers and services have: derived from nothing that says something."""


class Refused(OSError, ValueError):  # noqa: N818
    """As some libraries mix them."""


class BadOrder(ValueError):  # noqa: N818
    pass


def text(code: str, file: str = "/srv/app.py") -> str:
    """What a worker sends when this code raises."""
    names = {"json": json, "decimal": decimal, "Service": Service, "Refused": Refused, "BadOrder": BadOrder}
    try:
        exec(compile(code, file, "exec"), names)  # noqa: S102
    except BaseException:  # noqa: BLE001
        return traceback.format_exc()
    raise AssertionError(code)


@pytest.mark.parametrize(
    "code",
    [
        "int('x')",
        "1 // 0",
        "{}['k']",
        "[][0]",
        "None.cents",
        "'a' + 1",
        "json.loads('{')",
        "decimal.Decimal(1) / 0",
        "b'\\xff'.decode()",
        "raise BadOrder('of 1815')",
        "assert not 1",
    ],
)
def test_what_a_value_can_cause_is_of_a_record(code):
    assert is_of_a_record(text(code))


@pytest.mark.parametrize(
    "code",
    [
        "open('/no/such/model')",
        "raise ConnectionRefusedError(111)",
        "raise BrokenPipeError",
        "raise TimeoutError",
        "raise MemoryError",
        "import no_such_module",
        "raise Service('away')",
        "raise Refused('away')",
        "raise RuntimeError('closed')",
        "nothing",
        "raise KeyboardInterrupt",
        "{}['k'] if False else exec(\"class Local(ValueError): pass\\nraise Local\", {'__name__': 'gone'})",
    ],
)
def test_what_the_machine_a_service_or_the_code_causes_stops_the_view(code):
    assert not is_of_a_record(text(code))


def test_of_exceptions_that_replace_each_other_the_last_one_counts():
    found = text("try:\n    {}['k']\nexcept KeyError:\n    raise ConnectionRefusedError('the store')")
    assert raised(found).startswith("ConnectionRefusedError: the store (in app.py, line 4")
    assert not is_of_a_record(found)
    found = text("try:\n    open('/no/such')\nexcept OSError:\n    raise ValueError('of 1815')")
    assert raised(found).startswith("ValueError: of 1815 (in app.py, line 4")
    assert is_of_a_record(found)


def test_an_operator_that_fails_is_not_the_fault_of_a_record():
    assert not is_of_a_record(text("{}['k']", "/opt/lib/headwater/pipeline/tables/group.py"))


class Raised(PySparkException):
    """What Spark raises, with its condition and its SQL state."""

    def __init__(self, condition: str, state: str) -> None:
        super().__init__(f"it is so. SQLSTATE: {state}")
        self.condition, self.state = condition, state

    def getCondition(self):  # noqa: N802
        return self.condition

    def getSqlState(self):  # noqa: N802
        return self.state


@pytest.mark.parametrize(
    ("condition", "state", "fault"),
    [
        ("DIVIDE_BY_ZERO", "22012", Fault("[DIVIDE_BY_ZERO] it is so.")),
        ("ARITHMETIC_OVERFLOW", "22003", Fault("[ARITHMETIC_OVERFLOW] it is so.", overflow=True)),
        ("KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", "22000", None),
        ("USER_RAISED_EXCEPTION", "P0001", None),
        ("STATE_STORE_COMMIT_VALIDATION_FAILED", "XXKST", None),
    ],
)
def test_of_sparks_own_errors_those_of_values_are_of_a_record(condition, state, fault):
    assert Spark(Settings()).fault(Raised(condition, state)) == fault
