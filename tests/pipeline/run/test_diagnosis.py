"""What ended a view is said with the person's own lines, and with what to do about the record."""

from pathlib import Path

from headwater.pipeline.run.diagnosis import diagnose
from support.traceback_text import PRINTED


def test_an_exception_of_a_function_names_its_line_and_how_to_find_the_record():
    error = diagnose("totals", RuntimeError(PRINTED), Path("data"))
    assert str(error) == (
        "view 'totals' has stopped; got ValueError: no number: x (in texts.py, line 4, in strip: "
        'raise ValueError(f"no number: {text}"), called from app.py, line 31, in clean: '
        "return int(strip(text))); with on_error='skip' such a record goes to totals.failed with its place; "
        "Spark's log is data/logs/spark.log"
    )


def test_another_error_is_its_first_line():
    error = diagnose("totals", RuntimeError("[DIVIDE_BY_ZERO] by zero. SQLSTATE: 22012\nmore"), Path("data"))
    assert error.got == "[DIVIDE_BY_ZERO] by zero."


def test_a_worker_of_python_that_crashes_is_said_and_not_the_call_that_met_it():
    text = (
        "An error occurred while calling o8104.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 9.0 failed 4 times, "
        "most recent failure: Lost task 0.3 in stage 9.0 (TID 41) (shop executor driver): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting more\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    assert (
        diagnose("totals", RuntimeError(text), Path("data")).got
        == "Python worker exited unexpectedly (crashed)."
    )
