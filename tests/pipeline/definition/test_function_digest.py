"""What a Python function computes: the same digest for the same code, another one for everything that may change its answer."""

import functools
import math
import os
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from enum import Enum

import pytest
from pyspark import cloudpickle

from headwater.pipeline.definition.function_digest import fingerprint, unpickled


def made(text: str, **names: object) -> object:
    """The function ``f`` of a program."""
    namespace: dict[str, object] = {"__name__": "__main__", **names}
    exec(textwrap.dedent(text), namespace)  # noqa: S102
    return namespace["f"]


SAME = {
    "lines, comments and docstrings": (
        "def f(x): return x + 1",
        "\n\ndef f(x):\n    '''Adds.'''\n    # one\n    return x + 1",
    ),
    "its name": ("def f(x): return x + 1", "def g(x): return x + 1\nf = g"),
    "names of local variables": ("def f(x):\n  a = x\n  return a", "def f(x):\n  b = x\n  return b"),
    "annotations": ("def f(x): return x", "def f(x: int) -> int: return x"),
    "the name of a function that it calls": (
        "def g(x): return x\ndef f(x): return g(x)",
        "def h(x): return x\ndef f(x): return h(x)",
    ),
    "a global that it does not use": ("n = 1\ndef f(x): return x", "n = 2\ndef f(x): return x"),
    "the order of a set": (
        "s = {'a', 'b'}\ndef f(x): return x in s",
        "s = {'b', 'a'}\ndef f(x): return x in s",
    ),
}
OTHER = {
    "a constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "the type of a constant": ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    "the sign of zero": ("def f(x): return x * 0.0", "def f(x): return x * -0.0"),
    "an operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "the name of an attribute": ("def f(x): return x.a", "def f(x): return x.b"),
    "a default": ("def f(x, n=1): return x + n", "def f(x, n=2): return x + n"),
    "a default by keyword": ("def f(x, *, n=1): return x + n", "def f(x, *, n=2): return x + n"),
    "a global": ("n = 1\ndef f(x): return x + n", "n = 2\ndef f(x): return x + n"),
    "a function that it calls": (
        "def g(x): return x\ndef f(x): return g(x)",
        "def g(x): return -x\ndef f(x): return g(x)",
    ),
    "a function inside of it": (
        "def f(x):\n  def g(y): return y\n  return g(x)",
        "def f(x):\n  def g(y): return -y\n  return g(x)",
    ),
    "a global that only a function inside of it uses": (
        "n = 1\ndef f(x): return [y + n for y in x]",
        "n = 2\ndef f(x): return [y + n for y in x]",
    ),
    "the closure": (
        "def g(n):\n  def f(x): return x + n\n  return f\nf = g(1)",
        "def g(n):\n  def f(x): return x + n\n  return f\nf = g(2)",
    ),
    "a table in a global": ("t = {'a': [1]}\ndef f(x): return t[x]", "t = {'a': [2]}\ndef f(x): return t[x]"),
    "a set": ("def f(x): return x in {'a', 'b'}", "def f(x): return x in {'a', 'c'}"),
    "a module": (
        "import math as m\ndef f(x): return m.floor(x)",
        "import cmath as m\ndef f(x): return m.floor(x)",
    ),
    "what catches an exception": (
        "def f(x):\n  try: return 1 / x\n  except ValueError: return 0",
        "def f(x):\n  try: return 1 / x\n  except ZeroDivisionError: return 0",
    ),
    "a method of a class": (
        "class C:\n  def m(self): return 1\ndef f(x): return C().m()",
        "class C:\n  def m(self): return 2\ndef f(x): return C().m()",
    ),
    "the state of an object": (
        "class C:\n  def __init__(self, n): self.n = n\nc = C(1)\ndef f(x): return c.n",
        "class C:\n  def __init__(self, n): self.n = n\nc = C(2)\ndef f(x): return c.n",
    ),
    "a decorator": (
        "import functools\ndef d(g): return functools.wraps(g)(lambda x: g(x))\n@d\ndef f(x): return x",
        "import functools\ndef d(g): return functools.wraps(g)(lambda x: -g(x))\n@d\ndef f(x): return x",
    ),
    "a partial argument": (
        "import functools\ndef g(n, x): return n + x\nf = functools.partial(g, 1)",
        "import functools\ndef g(n, x): return n + x\nf = functools.partial(g, 2)",
    ),
    "a pattern": (
        "import re\np = re.compile('a')\ndef f(x): return p.match(x)",
        "import re\np = re.compile('b')\ndef f(x): return p.match(x)",
    ),
}


def sent(function: object) -> object:
    """A function as it comes back from where Spark keeps it."""
    return unpickled(cloudpickle.dumps((function, None)))


@pytest.mark.parametrize("case", SAME)
def test_what_changes_no_answer_changes_no_fingerprint(case):
    one, two = map(made, SAME[case])
    assert fingerprint(one) == fingerprint(two) == fingerprint(sent(one)) == fingerprint(sent(two))


@pytest.mark.parametrize("case", OTHER)
def test_what_may_change_an_answer_changes_the_fingerprint(case):
    one, two = map(made, OTHER[case])
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(sent(one)) != fingerprint(sent(two))


def test_a_function_of_a_module_of_the_application_counts_with_its_code(tmp_path, monkeypatch):
    """Also when it is used through its module, or imported inside of the function; and what it calls there."""
    monkeypatch.syspath_prepend(tmp_path)
    programs = (
        "import {0}\ndef f(x): return {0}.scaled(x)",
        "from {0} import scaled\ndef f(x): return scaled(x)",
        "def f(x):\n  from {0} import scaled\n  return scaled(x)",
        "def f(x):\n  import {0}\n  return {0}.scaled(x)",
    )
    for program in programs:
        found = set()
        for factor in (1, 2):
            (tmp_path / "scaling.py").write_text(
                f"FACTOR = {factor}\n\ndef scaled(x):\n    return x * FACTOR\n"
            )
            sys.modules.pop("scaling", None)
            found.add(fingerprint(sent(made(program.format("scaling")))))
            (tmp_path / "scaling.py").unlink()
        assert len(found) == len((1, 2)), program
    sys.modules.pop("scaling", None)


def test_a_function_of_an_installed_package_is_its_name_and_version(monkeypatch):
    import numpy as np
    import pandas as pd

    program = "def f(x): return n.log2(x)"
    assert fingerprint(made(program, n=np)) == fingerprint(sent(made(program, n=np)))
    assert fingerprint(made(program, n=np)) != fingerprint(made(program, n=math))
    assert fingerprint(np.log2) != fingerprint(np.log10)
    assert fingerprint(pd.DataFrame.sum) != fingerprint(pd.DataFrame.mean)


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: int

    def __call__(self, y: int) -> int:
        return self.x + y


def test_values_of_all_kinds_are_distinguished_and_recognized():
    nested: list[object] = [1]
    nested.append(nested)
    other: list[object] = [2]
    other.append(other)
    values = [
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        ...,
        (1,),
        [1],
        {1},
        frozenset({1}),
        {1: 1},
        {"1": 1},
        Color.RED,
        Color.BLUE,
        Color,
        Point(1),
        Point(2),
        Point(1).__call__,
        len,
        "a".upper,
        "b".upper,
        math.floor,
        re.compile("a"),
        re.compile("a", re.IGNORECASE),
        functools.partial(pow, 2),
        functools.partial(pow, 3),
        nested,
        other,
        float("nan"),
    ]
    found = [fingerprint(value) for value in values]
    assert len(set(found)) == len(values)
    assert [fingerprint(value) for value in values] == found


def test_a_function_with_a_cache_is_what_the_cache_wraps():
    program = "import functools\n@functools.lru_cache\ndef g(x): return x * {0}\ndef f(x): return g(x)"
    one, again, two = (made(program.format(n)) for n in (1, 1, 2))
    assert fingerprint(one) == fingerprint(again) != fingerprint(two)


def test_a_large_table_is_read_in_a_moment():
    program = "t = dict.fromkeys(range(1_000_000), 'x')\nt[{0}] = 'y'\ndef f(x): return t[x]"
    one, two = (made(program.format(n)) for n in (1, 2))
    began = time.process_time()
    assert fingerprint(one) != fingerprint(two)
    assert time.process_time() - began < 20


def test_functions_that_call_each_other_end():
    program = "def g(x): return x and f(x - {0})\ndef f(x): return x and g(x - 1)"
    one, again, two = (made(program.format(n)) for n in (1, 1, 2))
    assert fingerprint(one) == fingerprint(again) != fingerprint(two)


def test_a_fingerprint_is_the_same_in_every_process():
    program = textwrap.dedent("""
        from headwater.pipeline.definition.function_digest import fingerprint
        WORDS = {"a", "b", "c", "d", "e", "f", "g"}
        class Known:
            def __init__(self): self.more = frozenset(WORDS | {"h"})
            def __call__(self, word): return word in WORDS or word in {"x", "y", "z"} or word in self.more
        print(fingerprint(Known()))
    """)
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
