"""Derived state to people and programs: query it, subscribe to it, look at it."""

from headwater.view.push import Hub
from headwater.view.reach import Reach
from headwater.view.table import ViewTable
from headwater.view.web import Info, ViewInfo, build

__all__ = ["Hub", "Info", "Reach", "ViewInfo", "ViewTable", "build"]
