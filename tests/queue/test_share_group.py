"""Share groups: members, epochs and assignments; sessions; acknowledgements and settings as they come from clients."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import ErrorCode, RequestError
from headwater.queue.acknowledgement import AckBatch, AckType, check_batches
from headwater.queue.assignor import assign
from headwater.queue.share_config import ShareConfig, parse_share_config
from headwater.queue.share_group import Heartbeat, ShareGroup
from headwater.queue.share_session import ShareSessions

T, U = uuid.UUID(int=1), uuid.UUID(int=2)
CONFIG = ShareConfig()


class Topics(dict):
    """The topics that exist, as the group looks them up."""

    def __call__(self, names):
        return {name: self[name] for name in names if name in self}


def refused(code, act):
    with pytest.raises(RequestError) as refusal:
        act()
    assert refusal.value.code == code


def beat(group, topics, member, epoch=0, *, names=("t",)):
    return group.heartbeat(Heartbeat(member, epoch, topics=names), 0.0, CONFIG, topics)


def test_a_member_joins_with_its_own_id_and_gets_all_partitions():
    group, topics = ShareGroup("g"), Topics(t=(T, 3))
    answer = beat(group, topics, "ada")
    assert (answer.epoch, answer.assignment) == (1, {T: (0, 1, 2)})
    assert beat(group, topics, "ada", 1, names=None).assignment is None


def test_a_second_member_takes_its_share_and_the_first_hears_of_it_with_its_next_heartbeat():
    group, topics = ShareGroup("g"), Topics(t=(T, 3))
    beat(group, topics, "ada")
    assert beat(group, topics, "bo").assignment == {T: (1,)}
    answer = beat(group, topics, "ada", 1, names=None)
    assert (answer.epoch, answer.assignment) == (2, {T: (0, 2)})
    assert beat(group, topics, "ada", 1, names=None).assignment == {T: (0, 2)}, "the answer was lost"
    assert beat(group, topics, "ada", 2, names=None).assignment is None


def test_more_members_than_partitions_share_them():
    group, topics = ShareGroup("g"), Topics(t=(T, 2))
    members = [f"m{i}" for i in range(5)]
    for member in members:
        beat(group, topics, member)
    assert [group.members[m].assignment for m in members] == [{T: (i % 2,)} for i in range(5)]


def test_partitions_that_are_added_and_topics_that_come_are_assigned():
    group, topics = ShareGroup("g"), Topics()
    assert beat(group, topics, "ada", names=("t", "u")).assignment == {}
    topics["t"] = (T, 1)
    assert beat(group, topics, "ada", 1, names=None).assignment == {T: (0,)}
    topics["t"], topics["u"] = (T, 2), (U, 1)
    assert beat(group, topics, "ada", 2, names=None).assignment == {T: (0, 1), U: (0,)}


def test_a_member_that_is_silent_for_a_session_is_removed_and_must_join_again():
    group, topics = ShareGroup("g"), Topics(t=(T, 1))
    beat(group, topics, "ada")
    assert group.expire(44.9) == []
    assert group.deadline() == 45.0
    assert group.expire(45.0) == ["ada"]
    refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda: beat(group, topics, "ada", 1, names=None))
    assert beat(group, topics, "ada").assignment == {T: (0,)}


def test_epochs_of_members_are_checked():
    group, topics = ShareGroup("g"), Topics(t=(T, 1))
    for member in ("ada", "bo", "cy"):
        beat(group, topics, member)
    for epoch in (1, 1, 3, 1, 3):  # the answer with epoch 3 may have been lost
        assert beat(group, topics, "ada", epoch, names=None).epoch == 3
    refused(ErrorCode.FENCED_MEMBER_EPOCH, lambda: beat(group, topics, "ada", 4, names=None))
    beat(group, topics, "ada", -1)
    refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda: beat(group, topics, "ada", -1))


@pytest.mark.parametrize(
    "wrong",
    [
        Heartbeat("", 0, topics=("t",)),
        Heartbeat("m" * 37, 0, topics=("t",)),
        Heartbeat("m", -2, topics=("t",)),
        Heartbeat("m", 0, topics=()),
        Heartbeat("m", 0),
        Heartbeat("m", 0, rack=" ", topics=("t",)),
    ],
)
def test_a_malformed_heartbeat_is_refused(wrong):
    group = ShareGroup("g")
    refused(ErrorCode.INVALID_REQUEST, lambda: group.heartbeat(wrong, 0, CONFIG, Topics(t=(T, 1))))
    assert not group.members


def test_a_group_has_at_most_two_hundred_members():
    group, topics = ShareGroup("g"), Topics(t=(T, 1))
    for number in range(200):
        beat(group, topics, f"m{number}")
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, lambda: beat(group, topics, "one more"))


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.sets(st.sampled_from(["t", "u"]))),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_every_partition_has_a_member_and_every_member_a_partition(subscriptions, of_t, of_u):
    topics = {"t": (T, of_t), "u": (U, of_u)}
    assignments = assign({m: tuple(sorted(names)) for m, names in subscriptions.items()}, topics)
    for name, (topic_id, count) in topics.items():
        members = [m for m, names in subscriptions.items() if name in names]
        given = [assignments[m].get(topic_id, ()) for m in subscriptions]
        assert all(assignments[m][topic_id] for m in members)
        assert not any(topic_id in assignments[m] for m in subscriptions if m not in members)
        if members:
            assert {p for parts in given for p in parts} == set(range(count))
            shares = [sum(p in parts for parts in given) for p in range(count)]
            sizes = [len(assignments[m][topic_id]) for m in members]
            assert max(shares) - min(shares) <= 1
            assert max(sizes) - min(sizes) <= 1


def test_sessions_are_bounded_and_one_that_begins_again_needs_no_room():
    sessions = ShareSessions(2)
    sessions.begin("g", "ada", None, 0)
    sessions.begin("g", "bo", None, 0)
    refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, lambda: sessions.begin("g", "cy", None, 0))
    again = sessions.begin("g", "ada", None, 0)
    assert sessions.find("g", "ada") is again
    sessions.end(again)
    sessions.begin("g", "cy", None, 0)


def test_the_partitions_of_a_session_are_bounded():
    session = ShareSessions().begin("g", "ada", None, 0)
    session.add((T, index) for index in range(20_000))
    session.add([(T, 5)])
    refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, lambda: session.add([(U, 0)]))
    assert len(session.places) == 20_000


def test_the_epoch_of_a_session_begins_again_after_the_largest_number():
    sessions = ShareSessions()
    session = sessions.begin("g", "ada", None, 0)
    session.epoch = 2**31 - 1
    assert sessions.next("g", "ada", 2**31 - 1, None, 0).epoch == 1


def test_a_renewal_needs_a_request_that_renews():
    assert list(check_batches([AckBatch(0, 1, [4])], renewing=True)[0].parts()) == [(0, 1, AckType.RENEW)]
    refused(ErrorCode.INVALID_REQUEST, lambda: check_batches([AckBatch(0, 1, [4])], renewing=False))


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [("PT1H", 3_600_000), ("P2DT30M", 174_600_000), ("pt0.5s", 500), ("P1D", 86_400_000)],
)
def test_a_duration_of_iso_8601_is_understood(text, age_ms):
    assert parse_share_config({"share.auto.offset.reset": f"by_duration:{text}"}).reset_age_ms == age_ms


@pytest.mark.parametrize(
    "text",
    [
        "by_duration:",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:-PT1H",
        "first",
        f"by_duration:P{'9' * 400}D",
    ],
)
def test_another_start_is_refused(text):
    refused(ErrorCode.INVALID_CONFIG, lambda: parse_share_config({"share.auto.offset.reset": text}))


@pytest.mark.parametrize(
    "config",
    [
        {"share.delivery.count.limit": "26"},
        {"share.record.lock.duration.ms": "999"},
        {"share.partition.max.record.locks": "99"},
        {"share.isolation.level": "serializable"},
        {"share.heartbeat.interval.ms": "45000"},
        {"consumer.session.timeout.ms": "45000"},
    ],
)
def test_settings_out_of_range_are_refused(config):
    refused(ErrorCode.INVALID_CONFIG, lambda: parse_share_config(config))
