"""A life that fails says whose fault it is: the product's, or the simulator's own."""

import pytest

from headwater.errors import UnavailableError
from headwater.record import BatchHeader, decompress
from simulation.ending import HARNESS, ending, is_defect
from simulation.model import Wrong


def wrap(error: Exception) -> None:
    raise Wrong("sink 1 ended") from error


def mistake() -> None:
    {}[0]


def away() -> None:
    raise UnavailableError("the store does not answer")


def wrong() -> None:
    raise Wrong("kept-0: a record is gone")


def wrapped_mistake() -> None:
    try:
        mistake()
    except KeyError as error:
        wrap(error)


def wrapped_fault() -> None:
    try:
        away()
    except UnavailableError as error:
        wrap(error)


def ended(function) -> str:
    with pytest.raises(Exception) as caught:
        function()
    return ending(caught.value)


@pytest.mark.parametrize(
    "function",
    [wrong, away, wrapped_fault, lambda: BatchHeader.read(b""), lambda: decompress(0, None)],
    ids=[
        "a broken promise",
        "a fault that escapes",
        "a fault that ends a sink",
        "unpacking",
        "a mistake in src",
    ],
)
def test_what_the_product_does_is_a_defect(function):
    assert is_defect(ended(function))


@pytest.mark.parametrize("function", [mistake, wrapped_mistake])
def test_a_mistake_of_the_simulator_names_its_line_and_is_not_a_defect(function):
    text = ended(function)
    assert text.startswith(f"{HARNESS}, at test_ending.py:")
    assert not is_defect(text)


def test_a_life_that_passes_has_no_defect():
    assert not is_defect(None)
