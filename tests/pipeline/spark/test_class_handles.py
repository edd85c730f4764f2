"""Classes of the JVM are looked up once, ours and those that PySpark names."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipeline.spark import catalyst

pytestmark = pytest.mark.spark


class Counted:
    """Counts what py4j asks the JVM meanwhile."""

    def __init__(self, client, monkeypatch) -> None:
        self.commands: list[str] = []
        send = client.send_command

        def counted(command, *given, **more):
            self.commands.append(command)
            return send(command, *given, **more)

        monkeypatch.setattr(client, "send_command", counted)

    @property
    def lookups(self) -> list[str]:
        return [command for command in self.commands if command.startswith("r\n")]


@pytest.fixture
def counted(spark, monkeypatch):
    return Counted(spark.sparkContext._gateway._gateway_client, monkeypatch)


def test_pyspark_asks_for_no_class_and_for_each_method_once(spark, counted):
    names = [f"c{n}" for n in range(20)]
    rows = spark.range(1).select(*(F.lit(n).alias(name) for n, name in enumerate(names)))
    rows.select(*names).selectExpr(*names).where(F.col("c1") > 0)

    assert len(counted.commands) > 100
    assert not [command for command in counted.lookups if command.startswith("r\nu\n")]
    assert len(counted.lookups) <= 4, counted.lookups


def test_a_static_method_is_asked_for_once(spark, counted):
    for _ in range(3):
        catalyst.of(spark, "java.lang.Integer").valueOf("1")

    assert len(counted.lookups) <= 1


def test_a_class_of_a_package_is_an_attribute(spark):
    assert catalyst.package(spark, "java.lang").Integer.valueOf("7") == 7
