"""Class handles: classes of the JVM by name, which are looked up once, as are their static methods.

py4j asks the JVM for each name at each use. A short name is then searched for in all packages that PySpark
has imported, in all of Spark's jars, and a static method among all methods of its class.
"""

from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView

__all__ = ["METHODS_MAX", "Package", "handle", "prepare"]

CLASSES_MAX = 500
"""More than are used by name."""
METHODS_MAX = 2_000
"""How many methods py4j remembers for the thread that plans the views. A plan calls more than its 100."""
NAMED_BRIEFLY = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.api.python.SimplePythonFunction",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
    "org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper",
    "org.apache.spark.sql.functions",
)
"""Classes that PySpark names without their package."""
NAMED_IN_FULL = (
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
    "org.apache.spark.sql.functions",
)
"""Classes that PySpark names with their package, again and again."""


class Class(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A class of the JVM that remembers the static methods that it was asked for."""

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            self.__dict__[name] = member
        return member


class Package:
    """A package of the JVM, whose classes are its attributes."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    def __getattr__(self, name: str) -> Class:
        return handle(self._client, f"{self._name}.{name}")


@lru_cache(CLASSES_MAX)
def handle(client: Any, name: str) -> Class:
    """The class with this full name. Whether there is one shows at its first use."""
    return Class(name, client)


def prepare(jvm: JVMView) -> None:
    """Gives PySpark handles of the classes that it names, and py4j room for the methods of a plan."""
    client = jvm._gateway_client  # noqa: SLF001
    for name in NAMED_BRIEFLY:
        setattr(jvm, name.rpartition(".")[2], handle(client, name))
    for name in NAMED_IN_FULL:
        setattr(jvm, name, handle(client, name))
    engine = handle(client, "java.lang.Class").forName("py4j.reflection.ReflectionEngine")
    caches = engine.getDeclaredField("cacheHolder")
    caches.setAccessible(True)
    caches.get(None).set(handle(client, "py4j.reflection.LRUCache")(METHODS_MAX))
