"""The demo's application, loaded as `headwater demo` loads it."""

from pathlib import Path

import pytest

import headwater.demo
from headwater.declare.app import App


@pytest.fixture(scope="session")
def shop():
    return App.load(str(Path(headwater.demo.__file__).with_name("shop.py"))).graph()
