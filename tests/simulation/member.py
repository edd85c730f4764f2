"""Member: a consumer's place in its group, with the real coordinator: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

It assigns cooperatively and stickily, as librdkafka does: a partition that is to move is first given back by its holder, and assigned in the round after
that. What members say to each other is JSON of our own, since the broker does not look into it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headwater.errors import ErrorCode
from simulation.network import Link

__all__ = ["Change", "Member", "shared"]

Place = tuple[str, int]
AGAIN_S = 0.5
POLL_S = 300.0
"""Who does not poll for so long leaves the group (``max.poll.interval.ms``)."""
REFRESH_S = 5.0


class Change(NamedTuple):
    """A change of the assignment, which a callback of the application's next poll gets."""

    kind: str
    """assign, revoke or lost"""
    places: list[Place]
    served: asyncio.Future


class Said(msgspec.Struct):
    topics: list[str]
    owned: list[Place]
    generation: int


class Member:
    """``notify`` hands a Change to the consumer, which serves it in a poll."""

    def __init__(self, link: Link, group: str, topics: list[str], session_ms: int, notify: Any) -> None:
        self.link, self.group, self.topics, self.notify = link, group, topics, notify
        self.session_ms = session_ms
        self.id, self.generation = "", -1
        self.owned: set[Place] = set()
        self.polled_at = link.hub.loop.time()
        self._counts: dict[str, int] = {}
        self.task = link.hub.task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                if await self._round():
                    await self._beat()
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(max(AGAIN_S, self.link.hub.slack / 8))

    async def leave(self) -> None:
        self.task.cancel()
        if self.id:
            members = [{"member_id": self.id}]
            await self.link.ask("LeaveGroup", 3, within_s=5, group_id=self.group, members=members)

    async def _round(self) -> bool:
        """Joins; whether the assignment is final for now."""
        said = Said(self.topics, sorted(self.owned), self.generation)
        protocols = [{"name": "cooperative-sticky", "metadata": msgspec.json.encode(said)}]
        joined = await self.link.ask(
            "JoinGroup",
            5,
            within_s=POLL_S + self.session_ms / 1000,
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=int(POLL_S * 1000),
            member_id=self.id,
            protocol_type="consumer",
            protocols=protocols,
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = joined.member_id
            return False
        if joined.error_code:
            await self._refused(joined.error_code)
            return False
        self.id, self.generation = joined.member_id, joined.generation_id
        self._counts = await self._partitions()
        assignments = self._assigned(joined.members) if joined.leader == self.id else []
        synced = await self.link.ask(
            "SyncGroup",
            3,
            within_s=POLL_S,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=assignments,
        )
        if synced.error_code:
            await self._refused(synced.error_code)
            return False
        places = msgspec.json.decode(synced.assignment, type=list[Place]) if synced.assignment else []
        return await self._take(set(places))

    async def _take(self, new: set[Place]) -> bool:
        gone = self.owned - new
        if gone:
            await self._notify("revoke", gone)
        self.owned -= gone
        await self._notify("assign", new - self.owned)
        self.owned |= new
        return not gone

    async def _notify(self, kind: str, places: Iterable[Place]) -> None:
        served = self.link.hub.loop.create_future()
        self.notify(Change(kind, sorted(places), served))
        await served

    async def _refused(self, code: int) -> None:
        """The coordinator does not know us any more, or wants us to join again."""
        if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            await self._lost()
        elif code != ErrorCode.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(max(AGAIN_S, self.link.hub.slack / 8))

    async def _lost(self) -> None:
        if self.owned:
            lost, self.owned = self.owned, set()
            await self._notify("lost", lost)
        self.id, self.generation = "", -1

    async def _beat(self) -> None:
        """Until the group changes."""
        hub = self.link.hub
        while True:
            try:
                await asyncio.sleep(max(self.session_ms / 4000, 0.1))
                if self.link.owner is not None:
                    await self.link.owner.awake()
                if hub.loop.time() - self.polled_at > max(POLL_S, 2 * hub.slack):
                    await self._too_late()
                    return
                answer = await self.link.ask(
                    "Heartbeat", 3, group_id=self.group, generation_id=self.generation, member_id=self.id
                )
                if answer.error_code:
                    await self._refused(answer.error_code)
                    return
                if await self._partitions() != self._counts:
                    return
            except (ConnectionError, TimeoutError):
                continue

    async def _too_late(self) -> None:
        """The application has not polled: the group continues without us until it does."""
        members = [{"member_id": self.id}]
        await self.link.ask("LeaveGroup", 3, within_s=5, group_id=self.group, members=members)
        await self._lost()

    async def _partitions(self) -> dict[str, int]:
        topics = [{"name": name} for name in self.topics]
        answer = await self.link.ask("Metadata", 9, topics=topics, allow_auto_topic_creation=False)
        return {topic.name: len(topic.partitions) for topic in answer.topics if not topic.error_code}

    def _assigned(self, members: Iterable[Any]) -> list[dict[str, Any]]:
        said = {each.member_id: msgspec.json.decode(each.metadata, type=Said) for each in members}
        places = [(topic, n) for topic in sorted(self._counts) for n in range(self._counts[topic])]
        found = shared(said, places)
        return [
            {"member_id": member, "assignment": msgspec.json.encode(sorted(places))}
            for member, places in found.items()
        ]


def shared(said: Mapping[str, Said], places: list[Place]) -> dict[str, set[Place]]:
    """Who gets what in this round: a partition that is to move has no owner until its holder has given it back."""
    holder: dict[Place, tuple[int, str]] = {}
    for member in sorted(said):
        for place in said[member].owned:
            claim = (said[member].generation, member)
            if place in places and claim > holder.get(tuple(place), (-2, "")):
                holder[tuple(place)] = claim
    target: dict[str, set[Place]] = {member: set() for member in sorted(said)}
    for place, (_, member) in holder.items():
        target[member].add(place)
    for place in places:
        if place not in holder:
            min(target.items(), key=lambda each: (len(each[1]), each[0]))[1].add(place)
    while True:
        least = min(target, key=lambda each: (len(target[each]), each))
        most = max(target, key=lambda each: (len(target[each]), each))
        if len(target[most]) - len(target[least]) <= 1:
            break
        moving = max(target[most])
        target[most].discard(moving)
        target[least].add(moving)
    return {
        member: {place for place in mine if place not in holder or holder[place][1] == member}
        for member, mine in target.items()
    }
