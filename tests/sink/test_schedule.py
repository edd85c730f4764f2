"""The schedule of effects against the simplest one that can be right: a list that is searched."""

import random

from hypothesis import given
from hypothesis import strategies as st

from headwater.sink.effects.schedule import JITTER, PAUSES_S, Schedule, is_last, pause_ms

HOUR = 3600


class Listed:
    """All effects in the order of arrival; the first of a key is the only one that may go."""

    def __init__(self) -> None:
        self.all: list[list] = []
        self.out: set[str] = set()

    def heads(self) -> list[list]:
        seen: set[str] = set()
        found = []
        for each in self.all:
            if each[1] not in seen and each[0] not in self.out:
                found.append(each)
            seen.add(each[1])
        return found

    def take(self, now):
        due = [each for each in self.heads() if each[2] <= now]
        if not due:
            return None
        first = min(due, key=lambda each: each[2])
        self.out.add(first[0])
        return first[0]

    def due(self):
        return min((each[2] for each in self.heads()), default=None)

    def end(self, effect, due=None):
        self.out.discard(effect)
        for each in list(self.all):
            if each[0] == effect and due is None:
                self.all.remove(each)
            elif each[0] == effect:
                each[2] = due


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(0, 30)),
        st.tuples(st.just("take"), st.integers(0, 10)),
        st.tuples(st.just("finish"), st.integers(0, 5)),
        st.tuples(st.just("retry"), st.integers(0, 5), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(steps)
def test_any_history_gives_out_what_a_plain_list_gives_out(history):
    schedule, listed, now = Schedule(), Listed(), 0
    for count, step in enumerate(history):
        match step:
            case ("add", key, wait):
                schedule.add(f"e{count}", key, now + wait)
                listed.all.append([f"e{count}", key, now + wait])
            case ("take", passed):
                now += passed
                assert schedule.take(now) == listed.take(now)
            case ("finish", which) if listed.out:
                effect = sorted(listed.out)[which % len(listed.out)]
                schedule.finish(effect)
                listed.end(effect)
            case ("retry", which, wait) if listed.out:
                effect = sorted(listed.out)[which % len(listed.out)]
                schedule.retry(effect, now + wait)
                listed.end(effect, now + wait)
        assert len(schedule) == len(listed.all)
        assert schedule.due_ms() == listed.due()


@given(st.lists(st.sampled_from("ab"), max_size=20), st.integers(0, 1000))
def test_effects_of_a_key_are_delivered_in_order_however_often_attempts_fail(keys, seed):
    schedule, now, taken, chance = Schedule(), 0, [], random.Random(seed)
    for number, key in enumerate(keys):
        schedule.add(f"{key}{number}", key, 0)
    while len(schedule):
        now += 1
        out = []
        while (effect := schedule.take(now)) is not None:
            out.append(effect)
        assert len({effect[0] for effect in out}) == len(out)
        for effect in out:
            if chance.random() < 0.5:
                schedule.retry(effect, now + chance.randrange(1, 5))
            else:
                schedule.finish(effect)
                taken.append(effect)
    for key in "ab":
        assert [e for e in taken if e[0] == key] == [f"{k}{n}" for n, k in enumerate(keys) if k == key]


def test_the_pauses_are_those_that_are_documented_with_jitter_upwards():
    chance = random.Random(1)
    for attempts in range(1, len(PAUSES_S)):
        drawn = {pause_ms(attempts, chance) for _ in range(100)}
        assert PAUSES_S[attempts] * 1000 <= min(drawn)
        assert max(drawn) <= PAUSES_S[attempts] * 1000 * (1 + JITTER)
        assert len(drawn) > 50
    assert PAUSES_S == (0, 5, 300, HOUR / 2, 2 * HOUR, 5 * HOUR, 10 * HOUR, 10 * HOUR)
    assert is_last(len(PAUSES_S))
    assert not is_last(len(PAUSES_S) - 1)


def test_a_receiver_may_ask_for_more_time_but_not_for_less():
    chance = random.Random(1)

    assert pause_ms(1, chance, asked_s=120) == 120_000
    assert pause_ms(2, chance, asked_s=1) >= 300_000
