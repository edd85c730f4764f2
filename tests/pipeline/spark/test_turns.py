"""The batch that has waited longest gets the next free slot, whatever its view is called."""

import pytest

from headwater.pipeline.spark.turns import POOL, Turns

pytestmark = pytest.mark.spark


@pytest.fixture
def scheduler(spark):
    return spark.sparkContext._jsc.sc().taskScheduler()


def test_of_two_waiting_batches_the_older_one_goes_first(spark, scheduler):
    turns = Turns(spark)
    before = spark.sparkContext.getLocalProperty(POOL)
    fair = spark.sparkContext._jvm.org.apache.spark.scheduler.FairSchedulingAlgorithm()
    with turns.turn() as older, turns.turn() as newer:
        first, second = (scheduler.rootPool().getSchedulableByName(name) for name in (older, newer))
        assert fair.comparator(first, second)
        assert not fair.comparator(second, first)
        assert spark.sparkContext.getLocalProperty(POOL) == newer
    assert spark.sparkContext.getLocalProperty(POOL) == before


def test_the_jobs_of_a_batch_are_in_its_pool_and_nothing_of_it_is_left(spark, scheduler):
    pools = scheduler.rootPool().schedulableQueue()
    many = pools.size()
    turns = Turns(spark)
    for _ in range(3):
        with turns.turn() as name:
            assert spark.range(10).repartition(2).count() == 10
            assert scheduler.rootPool().getSchedulableByName(name) is not None
        assert scheduler.rootPool().getSchedulableByName(name) is None
    assert pools.size() == many
