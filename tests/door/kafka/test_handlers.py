"""The table of handlers is complete, and each handler is found by its API key."""

import importlib
import pkgutil

import headwater.door.kafka
from headwater.door.kafka.api import Handler
from headwater.door.kafka.handlers import HANDLERS


def test_every_handler_of_the_room_is_in_the_table():
    names = [module.name for module in pkgutil.iter_modules(headwater.door.kafka.__path__)]
    modules = [importlib.import_module(f"headwater.door.kafka.{name}") for name in names]
    handlers = {
        value.request.api.name
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Handler)
    }

    assert handlers == {handler.request.api.name for handler in HANDLERS.values()}
    assert all(handler.key == key for key, handler in HANDLERS.items())
