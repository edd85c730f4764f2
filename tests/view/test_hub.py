"""The hub as plain code: no gap, no repeat, no unbounded queue."""

from headwater.change import Change
from headwater.position import Position
from headwater.testing import SettableClock
from headwater.view.hub import Hub


def change(offset, key="k"):
    return Change(key, f'{{"n":{offset}}}', 0, offset, offset)


def at(offset, build=1):
    return Position({"v": {0: offset}}, build)


def publish(hub, *offsets, build=1):
    for offset in offsets:
        hub.publish("v", [change(offset)], at(offset + 1, build))


def offsets(pending):
    return [c.offset for commit in pending.commits for c in commit.changes]


class Bell:
    def __init__(self):
        self.rung = 0

    def __call__(self):
        self.rung += 1


def test_a_subscriber_gets_commits_in_order_and_is_woken():
    hub, bell = Hub(), Bell()
    subscription = hub.subscribe("v", bell)
    subscription.begin(at(0))

    publish(hub, 0, 1, 2)

    assert bell.rung == 3
    assert offsets(subscription.take()) == [0, 1, 2]
    assert offsets(subscription.take()) == []


def test_commits_that_the_first_reading_contained_are_not_repeated():
    hub = Hub()
    subscription = hub.subscribe("v", Bell())
    publish(hub, 0, 1, 2, 3)

    subscription.begin(at(2))  # the table was read between the commits of 1 and 2

    assert offsets(subscription.take()) == [2, 3]


def test_other_views_are_none_of_its_business():
    hub, bell = Hub(), Bell()
    subscription = hub.subscribe("v", bell)

    hub.publish("w", [change(0)], Position({"w": {0: 1}}, 1))

    assert bell.rung == 0
    assert offsets(subscription.take()) == []


def test_a_slow_subscriber_has_to_read_again_instead_of_being_buffered_for():
    hub = Hub(pending_changes_max=10)
    slow, quick = hub.subscribe("v", Bell()), hub.subscribe("v", Bell())
    slow.begin(at(0))
    quick.begin(at(0))
    taken = []

    for offset in range(1000):
        publish(hub, offset)
        taken += offsets(quick.take())
        assert len(slow._queue) <= 10

    assert taken == list(range(1000))
    assert slow.take().resync


def test_after_a_resync_nothing_is_missing():
    hub = Hub(pending_changes_max=4)
    subscription = hub.subscribe("v", Bell())
    subscription.begin(at(0))
    publish(hub, *range(20))
    assert subscription.take().resync

    publish(hub, 20)  # between the word and the reading of the table
    subscription.begin(at(21))
    publish(hub, 21)

    assert offsets(subscription.take()) == [21]


def test_one_large_commit_is_a_resync_too():
    hub = Hub(pending_changes_max=10)
    subscription = hub.subscribe("v", Bell())
    subscription.begin(at(0))

    hub.publish("v", [change(n) for n in range(500)], at(500))

    assert subscription.take().resync


def test_a_rebuilt_table_makes_subscribers_read_again():
    hub = Hub()
    subscription = hub.subscribe("v", Bell())
    subscription.begin(at(5, build=1))
    publish(hub, 5, build=1)

    hub.publish("v", [], Position({}, 2))

    assert subscription.take().resync


def test_commits_of_an_older_build_are_dropped_after_the_table_was_read():
    hub = Hub()
    subscription = hub.subscribe("v", Bell())
    publish(hub, 7, build=1)
    hub.publish("v", [], Position({}, 2))
    publish(hub, 0, build=2)

    subscription.begin(at(1, build=2))

    assert subscription.take().commits == []


def test_a_closed_hub_ends_its_subscriptions():
    hub, bell, watcher = Hub(), Bell(), Bell()
    subscription = hub.subscribe("v", bell)
    hub.watch(watcher)

    hub.close()

    assert subscription.take().closed
    assert bell.rung == watcher.rung == 1


def test_a_subscription_that_left_is_forgotten():
    hub, bell = Hub(), Bell()
    subscription = hub.subscribe("v", bell)
    end = hub.watch(bell)

    subscription.close()
    subscription.close()
    end()
    publish(hub, 0)

    assert bell.rung == 0
    assert hub.subscribers("v") == 0


def test_activity_counts_changes_and_remembers_when():
    clock = SettableClock()
    hub = Hub(clock)
    assert hub.activity("v").changed_at_ms is None

    publish(hub, 0, 1)
    then = clock.now_ms()
    clock.advance(5)
    hub.publish("v", [], at(3))

    assert hub.activity("v").changes == 2
    assert hub.activity("v").changed_at_ms == then
    assert hub.activity("v").position == at(3)


def test_the_last_minute_is_counted_by_seconds_and_forgets_what_is_older():
    clock = SettableClock()
    hub = Hub(clock)
    assert hub.minute("v") == (0,) * 60
    publish(hub, 1, 2)
    clock.advance(1)
    publish(hub, 3)
    clock.advance(3)
    assert hub.minute("v")[-5:] == (2, 1, 0, 0, 0)
    clock.advance(55)
    assert (hub.minute("v")[0], sum(hub.minute("v"))) == (2, 3)
    clock.advance(1)
    assert sum(hub.minute("v")) == 1
    assert sum(hub.minute("another")) == 0
