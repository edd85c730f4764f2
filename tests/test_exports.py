"""Public means exported: what a module says it offers exists. (ruff keeps the lists sorted.)"""

import importlib
import pkgutil

import pytest

import headwater

MODULES = [
    module.name
    for module in pkgutil.walk_packages(headwater.__path__, "headwater.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_exports_exists(name):
    module = importlib.import_module(name)

    assert [each for each in getattr(module, "__all__", []) if not hasattr(module, each)] == []


def test_the_package_offers_what_an_application_file_needs():
    assert {"App", "Event"} <= set(headwater.__all__)
