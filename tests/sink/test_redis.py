"""Redis as a store: what every store promises, and that an older value never takes a newer one's place."""

import json
import random
import threading
import uuid

import pytest
import redis

from headwater.errors import UnavailableError, UsageError
from headwater.sink import Redis
from headwater.sink.loop import loop
from headwater.sink.store import Poison, SinkFeed
from sink.contract import COLUMNS, Contract, batch, change, feed, version
from sink.killed import Killed, Story, run
from sink.killed import feed as killed_feed
from sink.running import Running
from support.databases import RedisProcess
from support.servers import wait_until


class RedisPlace:
    """One database of the server, emptied."""

    def __init__(self, server, form="json"):
        self.url = server.url
        self.form = form
        self.target = Redis(server.url, form=form)
        self.expression = f"hw.sink.Redis({server.url!r}, form={form!r})"
        self.client = redis.Redis.from_url(server.url, decode_responses=True)
        self.client.flushdb()

    def write_format(self, of, number):
        state = f"headwater.sink:state:{of.sink}:{of.topic}:"
        assert self.client.exists(state)
        self.client.hset(state, "format", number) if number else self.client.hdel(state, "format")

    def rows(self, feed):
        prefix = f"{feed.topic}:"
        keys = self.client.scan_iter(f"{prefix}*")
        return {key.removeprefix(prefix): self.row(key) for key in keys}

    def save(self):
        with redis.Redis.from_url(self.url) as client:
            return {key: client.dump(key) for key in client.scan_iter()}

    def restore(self, saved):
        with redis.Redis.from_url(self.url) as client:
            client.flushdb()
            for key, value in saved.items():
                client.restore(key, 0, value)

    def row(self, key):
        if self.form == "json":
            return json.loads(self.client.get(key))
        fields = self.client.hgetall(key)
        return fields | {"total": float(fields["total"])}


@pytest.fixture
def place(redis_server):
    place = RedisPlace(redis_server)
    yield place
    place.client.close()


class TestRedis(Contract, Killed):
    longest_s = 0.003


class TestRedisHashes(Contract):
    @pytest.fixture
    def place(self, redis_server):
        place = RedisPlace(redis_server, "hash")
        yield place
        place.client.close()

    def test_a_hash_has_a_field_for_each_column_and_none_of_the_row_before(self, place, store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0)))
        first = place.client.hgetall("orders:a")
        versionless = change("a", 2, 1)
        bare = type(versionless)("a", '{"id":"a","total":2.0,"gone":null}', 0, 1, 0)
        store.apply(batch(bare))

        assert json.loads(first["items"]) == ["a", 'b"']
        assert first["at"] == "2026-01-31T10:00:00.000001Z"
        assert place.client.hgetall("orders:a") == {"id": "a", "total": "2.0"}

    def test_a_value_that_is_not_a_row_is_named_and_nothing_is_written(self, place, store):
        store.claim([0])
        poison = type(change("b", 1, 1))("b", "[1]", 0, 1, 0)

        with pytest.raises(Poison) as caught:
            store.apply(batch(change("a", 1, 0), poison))
        assert (caught.value.partition, caught.value.offset) == (0, 1)
        assert place.rows(feed()) == {}


def versioned(key, total, offset, version):
    row = change(key, total, offset)
    return type(row)(key, row.value, row.partition, offset, row.timestamp_ms, version)


def test_a_row_whose_version_is_smaller_is_passed_over_and_of_equal_ones_the_later_counts(place):
    store = place.target.open(feed())
    store.claim([0])
    store.apply(batch(versioned("a", 31, 0, 31)))
    store.apply(batch(*(versioned("a", n, n, n) for n in range(1, 32))))
    assert place.rows(feed())["a"]["total"] == 31
    store.apply(batch(versioned("a", 32, 32, 32)))
    assert place.rows(feed())["a"]["total"] == 32
    store.apply(batch(versioned("a", 33, 33, 32)))
    assert place.rows(feed())["a"]["total"] == 33

    store.apply(batch(change("a", None, 34), versioned("a", 1, 35, 1)))
    assert place.rows(feed())["a"]["total"] == 1
    assert dict(store.claim([0])) == {0: 36}
    store.close()


def test_readers_never_see_a_value_go_back_while_two_holders_fight_for_it(place):
    story = Story(3, 400)
    stop, backward = threading.Event(), []
    keys = [f"orders:0-{n}" for n in range(20)]

    def read():
        client = redis.Redis.from_url(place.url)
        seen = {}
        while not stop.is_set():
            for key, value in zip(keys, client.mget(keys), strict=True):
                total = json.loads(value)["total"] if value else -1
                if value and total < seen.get(key, -1):
                    backward.append((key, seen[key], total))
                seen[key] = max(total, seen.get(key, -1))
        client.close()

    reader = threading.Thread(target=read)
    reader.start()
    source = random.Random(3)
    changes = story.changes(0)
    holders = [place.target.open(killed_feed()) for _ in range(2)]
    at = [0, 0]
    try:
        while max(at) < 400:
            one = source.randrange(2)
            if source.random() < 0.3 or not at[one]:
                at[one] = holders[one].claim([0]).get(0, 0)
            part = changes[at[one] : at[one] + source.randrange(1, 9)]
            try:
                if part:
                    holders[one].apply(batch(*part))
                    at[one] += len(part)
            except Exception:  # noqa: BLE001  superseded: the other continues
                at[one] = 0
    finally:
        stop.set()
        reader.join()
        for holder in holders:
            holder.close()

    assert backward == []


@pytest.fixture
def own_server(tmp_path):
    """One that a test may kill."""
    process = RedisProcess(tmp_path / "redis")
    process.start()
    yield process
    process.end()


def test_redis_killed_while_it_is_written_to_loses_nothing_that_it_has_confirmed(own_server):
    server = own_server
    place = RedisPlace(server)
    story = Story(5, 3_000)
    source = random.Random(5)

    def count():
        nonlocal left
        left -= 1
        if not left:
            timer.start()

    for _ in range(3):
        left = source.randrange(3, 12)
        timer = threading.Timer(source.random() * 0.01, server.end)
        with pytest.raises(UnavailableError):
            run(place.target, story, count, largest=20)
        timer.join()
        server.start()
    run(place.target, story).close()

    assert {key: row["total"] for key, row in place.rows(killed_feed()).items()} == story.ending()
    place.client.close()


def test_a_reset_that_was_interrupted_is_finished_by_the_next_claim(place):
    store = place.target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0)))
    store._client.scan = None  # the process ends here
    with pytest.raises(TypeError):
        store.reset()
    again = place.target.open(feed())

    assert dict(again.claim([0])) == {}
    assert place.rows(feed()) == {}
    again.close()
    store.close()


@pytest.mark.parametrize("form", ["json", "hash"])
@pytest.mark.parametrize("key", ["_headwater:orders.store", "_headwater:orders.store:versions"])
def test_a_row_with_any_key_leaves_the_state_of_its_sink_alone(redis_server, form, key):
    """Keys come from the writers of records: user names, slugs."""
    place = RedisPlace(redis_server, form)
    store = place.target.open(feed())
    store.claim([0])
    store.apply(batch(change("a", 1, 0), change(key, 2, 1), version("v", 5, 2)))
    names = [name for name in place.client.scan_iter() if not name.startswith("orders:")]
    odd = [change(name, 3, 3 + n) for n, name in enumerate(names)]
    store.apply(batch(*odd))
    again = place.target.open(feed())

    assert len(names) == 2
    assert dict(again.claim([0])) == {0: 5}
    assert place.rows(feed()).keys() == {"a", "v", key, *names}
    again.apply(batch(change(key, None, 5)))
    assert dict(again.claim([0])) == {0: 6}
    assert place.rows(feed()).keys() == {"a", "v", *names}
    again.reset()
    assert place.rows(feed()) == {}
    for each in (store, again, place.client):
        each.close()


def test_a_prefix_that_the_keys_of_sinks_begin_with_is_refused():
    for prefix in ("h", "headwater.sink:", "headwater.sink:state:"):
        with pytest.raises(UsageError, match="are reserved for sinks"):
            Redis("redis://localhost", prefix=prefix).check(feed())
    Redis("redis://localhost", prefix="headwater.sinks:").check(feed())


class EarlierVersion:
    """What a sink of the version before has left: its state among its rows."""

    def __init__(self, place, state):
        self.name = "orders:_headwater:orders.store"
        place.client.set("orders:a", change("a", 1, 0).value)
        place.client.hset(self.name, mapping=state)
        place.client.hset(f"{self.name}:versions", mapping={"orders:a": 9})


def test_a_sink_of_an_earlier_version_continues_from_its_offsets(place):
    before = EarlierVersion(place, {"0:claim": 7, "0:offset": 1})
    store = place.target.open(feed())

    assert dict(store.claim([0, 1])) == {0: 1}
    store.apply(batch(version("a", 8, 1), change("b", 2, 2)))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        place.client.hincrby(before.name, "0:claim", 1)  # what a process of that version would do
    place.client.delete(before.name)
    assert {key: row["total"] for key, row in place.rows(feed()).items()} == {"a": 1, "b": 2}
    again = place.target.open(feed())
    assert dict(again.claim([0])) == {0: 3}
    store.close()
    again.close()


def test_a_reset_that_an_earlier_version_has_begun_is_finished(place):
    EarlierVersion(place, {"0:claim": 7, "resetting": 1})
    store = place.target.open(feed())

    assert dict(store.claim([0])) == {}
    assert place.rows(feed()) == {}
    store.close()


@pytest.mark.parametrize("form", ["json", "hash"])
def test_a_sink_whose_state_a_row_had_replaced_is_filled_from_the_start(redis_server, form):
    place = RedisPlace(redis_server, form)
    place.client.set("orders:gone", "{}")
    name = "orders:_headwater:orders.store"
    place.client.set(name, "{}") if form == "json" else place.client.hset(name, mapping={"id": "x"})
    store = place.target.open(feed())

    assert dict(store.claim([0])) == {}
    assert place.rows(feed()) == {}
    store.apply(batch(change("a", 1, 0)))
    assert place.rows(feed()).keys() == {"a"}
    store.close()
    place.client.close()


def test_a_wrong_declaration_is_refused_before_anything_starts(place):
    with pytest.raises(UsageError, match="give the view a key"):
        place.target.check(SinkFeed("s", "clicks", (), COLUMNS, append=True))
    with pytest.raises(UsageError, match="not an address of Redis"):
        Redis("http://localhost").open(feed())
    with pytest.raises(UsageError, match="'json' or 'hash'"):
        Redis("redis://localhost", form="xml")


def test_a_server_that_is_away_is_reported_without_its_password():
    secret = uuid.uuid4().hex
    target = Redis(f"redis://me:{secret}@127.0.0.1:1/0")

    with pytest.raises(UnavailableError, match=r"redis://127\.0\.0\.1:1/0 does not answer") as caught:
        target.open(feed())
    assert secret not in str(caught.value) + repr(target)


def test_rows_with_and_without_versions_and_deletions_are_one_batch_of_any_size(place):
    store = place.target.open(feed())
    store.claim([0])
    many = [change(f"k{n}", n, n) for n in range(2_500)]
    store.apply(batch(*many, version("v", 9, 2_500), change("k7", None, 2_501)))
    assert {key: row["total"] for key, row in place.rows(feed()).items()} == {
        **{f"k{n}": n for n in range(2_500) if n != 7},
        "v": 9,
    }

    store.apply(batch(*many[:3], version("v", 8, 2_502)))
    assert place.rows(feed())["v"]["total"] == 9
    store.apply(
        batch(change("v", 1, 2_503))
    )  # one without a version takes its place, and the version is forgotten
    store.apply(batch(version("v", 5, 2_504)))
    assert place.rows(feed())["v"]["total"] == 5
    store.close()


def test_a_sink_with_nothing_to_do_notices_that_its_redis_went_back(place, log, monkeypatch):
    monkeypatch.setattr(loop, "SEEN_S", 0.3)
    topic = log.create(partitions=1)
    of = SinkFeed(f"{topic}.cache", topic, ("id",), {"id": "STRING", "n": "BIGINT"})
    log.put(topic, {"a": {"id": "a", "n": 1}})
    running = Running(loop.Loop(log.log, of.sink, topic, place.target, lambda: of))
    try:
        wait_until(lambda: place.rows(of).keys() == {"a"}, 30, "the first row")
        saved = place.save()
        log.put(topic, {"b": {"id": "b", "n": 2}})
        wait_until(lambda: place.rows(of).keys() == {"a", "b"}, 30, "the second row")
        place.restore(saved)
        assert place.rows(of).keys() == {"a"}
        wait_until(lambda: place.rows(of).keys() == {"a", "b"}, 30, "the second row again")
    finally:
        running.stop()
    assert running.error is None
