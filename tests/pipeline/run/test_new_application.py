"""The test that ``headwater init`` writes passes, and so does every view of the first page of the guide."""

import runpy
import sys

import pytest

from headwater.cli.new_application import write

pytestmark = pytest.mark.spark


def test_the_test_of_a_new_application_passes(spark, tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = runpy.run_path(str(tmp_path / "test_app.py"))
        found["test_orders_of_five_minutes_are_added_up"]()
    finally:
        sys.modules.pop("app", None)
