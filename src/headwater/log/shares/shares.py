"""Shares: the share groups of a broker. Brings their state machines, the log, the disk and the time together.

What a member does to records is stored before it is answered, and undone if it cannot be stored. Members and
sessions are not stored: after a restart, members join again.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence

from headwater.clock import Clock
from headwater.errors import ErrorCode, RequestError
from headwater.log.shares.membership import Membership
from headwater.log.shares.open_share import OpenShare
from headwater.log.shares.pledges import holder
from headwater.log.shares.reading import Delivery, deliver, first_offset, readable_to
from headwater.log.shares.recovery import recover, stored_config
from headwater.log.shares.share_record import ShareKey
from headwater.log.shares.share_store import ShareStore
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.partition import Partition
from headwater.queue.acknowledgement import AckBatch
from headwater.queue.acquisition import Wish
from headwater.queue.batch_acquisition import next_offset
from headwater.queue.settlement import conclude, pledge
from headwater.queue.share_config import ShareConfig, parse_share_config
from headwater.queue.share_group import Heartbeat, HeartbeatAnswer, ShareGroup
from headwater.queue.share_partition import Copy, SharePartition
from headwater.queue.share_session import Place, ShareSession, ShareSessions

__all__ = ["Shares"]

logger = logging.getLogger(__name__)


class Shares:
    """All share groups. The event loop owns it."""

    def __init__(self, store: ShareStore, catalog: Catalog, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._membership = Membership(catalog, clock)
        self._configs: dict[str, ShareConfig] = {
            group: stored_config(group, config) for group, config in store.settings.items()
        }
        self.groups = self._membership.groups
        self.sessions = ShareSessions()
        self._open, self._unstored = recover(store, catalog, self.config)
        for shares in self._open.values():
            for share in shares.values():
                self._attach(share)
        self._store_recovered()

    @property
    def is_offline(self) -> bool:
        """Whether the state of groups can no longer be stored."""
        return self._store.is_offline

    @property
    def started_ms(self) -> int:
        """The wall time at which the clock of locks and delays was 0."""
        return self._store.started_ms

    # ---- groups and their settings ---------------------------------------------------------------------

    def names(self) -> list[str]:
        """All groups that have members or records."""
        return list(dict.fromkeys([*self.groups, *self._open]))

    def has(self, group: str) -> bool:
        return group in self.groups or group in self._open

    def members(self, group: str) -> int:
        return len(self.groups[group].members) if group in self.groups else 0

    def config(self, group: str) -> ShareConfig:
        return self._configs.get(group, _DEFAULTS)

    def settings(self, group: str) -> dict[str, str]:
        """The settings of a group that differ from the defaults."""
        return dict(self._store.settings.get(group, {}))

    def configured(self) -> list[str]:
        """The groups that have settings."""
        return list(self._store.settings)

    def configure(self, group: str, config: dict[str, str], *, dry_run: bool = False) -> None:
        """Replaces the settings of a group, which need not have members yet."""
        parsed = parse_share_config(config)
        if not dry_run:
            self._store.configure(group, config)
            self._configs[group] = parsed
            for share in self.opened(group).values():
                share.wake()

    def heartbeat(self, group_id: str, request: Heartbeat) -> HeartbeatAnswer:
        """The answer to a member."""
        return self._membership.heartbeat(group_id, request, self.config(group_id))

    # ---- partitions ------------------------------------------------------------------------------------

    def open(self, group: str, place: Place) -> OpenShare:
        """A partition in a group.

        The group's first use of a topic decides the start offsets of all its partitions: from then on it gets
        every record, whenever its members first ask for a partition. A partition that is added to the topic
        later begins at its first record for the same reason.
        """
        shares = self._open.get(group, {})
        if place in shares:
            return shares[place]
        self._partition(place).check_online()
        topic = self._catalog.by_id[place[0]]
        if topic.parsed.compacts and self.config(group).opens_records:
            what = (
                f"topic {topic.name} is compacted, so it cannot be a queue: records go before they are done"
            )
            raise RequestError(ErrorCode.POLICY_VIOLATION, what)
        if any(topic_id == topic.id for topic_id, _ in shares):
            opened = {place: SharePartition(topic.partitions[place[1]].log_start_offset)}
        else:
            config, now_ms = self.config(group), self._clock.now_ms()
            logs = {(topic.id, index): topic.partitions[index] for index in range(len(topic.partitions))}
            opened = {
                each: SharePartition(first_offset(log, config, now_ms))
                for each, log in logs.items()
                if not log.offline
            }
        self._store.store({ShareKey(group, *each): state for each, state in opened.items()})
        for each, state in opened.items():
            share = OpenShare(ShareKey(group, *each), state, topic.partitions[each[1]])
            self._attach(share)
            self._open.setdefault(group, {})[each] = share
        return self._open[group][place]

    def opened(self, group: str) -> Mapping[Place, OpenShare]:
        """The partitions that were used in a group."""
        return self._open.get(group, {})

    def may_deliver(self, share: OpenShare) -> bool:
        """Whether it is worth a look: something is available or new, or can no longer be read."""
        if share.is_closed or share.log.offline:
            return True
        config = self.config(share.key.group)
        reader = share.reader_for(config)
        if reader is not None:
            self._scan_later(share)
            return reader.may_deliver(config, self._clock.monotonic())
        offset = next_offset(share.state, config)
        return offset is not None and offset < readable_to(share.log, config)

    def deliver(self, share: OpenShare, wish: Wish, *, bytes_max: int, is_first: bool) -> Delivery:
        """Locks records for a member. To be followed by ``store``."""
        if share.is_closed:
            what = f"group {share.key.group} has forgotten {share.log.name}"
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        share.drop_deleted()
        config, now = self.config(share.key.group), self._clock.monotonic()
        reader = share.reader_for(config)
        if reader is None:
            limits = {"bytes_max": bytes_max, "is_first": is_first, "now": now}
            return deliver(share.state, share.log, wish, config, **limits)  # type: ignore[arg-type]
        try:
            return reader.deliver(wish, config, bytes_max=bytes_max, is_first=is_first, now=now)
        finally:
            self._watch(share)  # it may have found scheduled records
            share.name_wrong()

    def _scan_later(self, share: OpenShare) -> None:
        share.scan_later(lambda: self.config(share.key.group), lambda: self._watch(share))

    def acknowledge(
        self, group: str, place: Place, member: str, batches: Sequence[AckBatch]
    ) -> tuple[OpenShare, Copy]:
        """Settles, releases or renews what a member holds. To be followed by ``store``.

        Returns the share partition, and how it was before.
        """
        share, copy = self._held(group, place)
        config = self.config(share.key.group)
        share.state.acknowledge(member, batches, config, self._clock.monotonic())
        return share, copy

    def _held(self, group: str, place: Place) -> tuple[OpenShare, Copy]:
        """A share partition of which members hold records, and a copy of it."""
        share = self._open.get(group, {}).get(place)
        if share is None:
            self._partition(place)
            what = f"group {group} has delivered nothing of this partition"
            raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)
        copy = share.state.copy()
        share.drop_deleted()
        return share, copy

    def pledge(
        self, group: str, place: Place, member: str, batches: Sequence[AckBatch], producer: tuple[int, int]
    ) -> None:
        """Settles what a member holds with the transaction of a producer: its id and epoch. Stores that."""
        share, copy = self._held(group, place)
        runs = pledge(share.state, member, batches, self.config(group), holder(producer[0]))
        try:
            if runs:
                self._store.pledge(share.key, [run.settled() for run in runs], *producer)
        except RequestError:
            share.state.restore(copy)
            raise

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """After the marker of a transaction: what it holds is settled, or available.

        A start learns it from the marker; so it is no harm if a full disk does not take it once more.
        """
        shares = [
            share
            for key in self._store.end_pledges(producer_id)
            if (share := self._open.get(key.group, {}).get((key.topic_id, key.partition))) is not None
        ]
        for share in shares:
            conclude(share.state, holder(producer_id), self.config(share.key.group), commit=commit)
        self._store_released(shares)

    def store(self, shares: Collection[OpenShare]) -> None:
        """Stores what was done to share partitions, and sets their timers.

        Raises RequestError if it cannot be stored: the caller undoes it then.
        """
        self._store.store({share.key: share.state for share in shares})
        for share in shares:
            self._watch(share)
            share.name_exhausted()

    def release(self, session: ShareSession) -> None:
        """Ends a session: what its member holds is available to others."""
        self.sessions.end(session)
        config = self.config(session.group)
        released = [
            share
            for share in self._open.get(session.group, {}).values()
            if share.state.release(session.member, config)
        ]
        self._store_released(released)

    def begin_session(self, group: str, member: str, connection: object) -> ShareSession:
        """A new session, in place of the member's former one.

        If there are too many, one that was silent for longer than its group allows members to be ends.
        """
        now = self._clock.monotonic()
        former = self.sessions.get(group, member)
        if former is not None and former.connection is not connection:
            self.release(former)
        silent = self.sessions.silent_longest() if self.sessions.is_full else None
        if silent is not None and silent.used + self.config(silent.group).session_timeout_ms / 1000 < now:
            self.release(silent)
        return self.sessions.begin(group, member, connection, now)

    def next_session(self, group: str, member: str, epoch: int, connection: object) -> ShareSession:
        """The session of a request that continues it."""
        return self.sessions.next(group, member, epoch, connection, self._clock.monotonic())

    def disconnect(self, connection: object) -> None:
        """Ends the sessions of a connection that is lost."""
        for session in self.sessions.of_connection(connection):
            self.release(session)

    def _store_released(self, shares: list[OpenShare]) -> None:
        """On a full disk a release is not stored: a restart releases everything anyway."""
        if not shares:
            return
        with contextlib.suppress(RequestError):
            self._store.store({share.key: share.state for share in shares})
        for share in shares:
            self._watch(share)
            share.name_exhausted()
            share.wake()

    def _watch(self, share: OpenShare) -> None:
        """Sets the timer of a share partition, unless one that is set ends earlier."""
        deadline = share.state.deadline
        if deadline is None or (share.timer is not None and share.timer_deadline <= deadline):
            return
        if share.timer is not None:
            share.timer.cancel()
        share.timer_deadline = deadline
        delay = max(deadline - self._clock.monotonic(), 0)
        share.timer = self._loop.call_later(delay, self._expire_locks, share)

    def _expire_locks(self, share: OpenShare) -> None:
        share.timer = None
        if share.state.expire(self._clock.monotonic(), self.config(share.key.group)):
            self._store_released([share])
        self._watch(share)

    def _partition(self, place: Place) -> Partition:
        topic = self._catalog.by_id.get(place[0])
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {place[0]} does not exist")
        if topic.internal:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
        return self._catalog.partition(topic.name, place[1])

    # ---- administration --------------------------------------------------------------------------------

    def move(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Begins at other offsets, with nothing known of what follows; the group has no members."""
        for place, offset in offsets.items():
            share = self._open.get(group, {}).get(place)
            log = self._partition(place)
            state = SharePartition(offset)
            key = ShareKey(group, *place)
            self._store.replace(key, state)
            moved = self._open.setdefault(group, {})[place] = OpenShare(key, state, log)
            self._attach(moved)
            self._replace(share)

    def forget(self, group: str, topic_id: uuid.UUID | None = None) -> None:
        """Forgets a group, or what it has of a topic."""
        shares = self._open.get(group, {})
        chosen = [share for share in shares.values() if topic_id in {None, share.key.topic_id}]
        self._store.forget([share.key for share in chosen])
        for share in chosen:
            del shares[share.key.topic_id, share.key.partition]
            self._replace(share)
        if not shares:
            self._open.pop(group, None)
        if topic_id is None and not self.members(group):
            self.groups.pop(group, None)
        elif not self.has(group):
            self.groups[group] = ShareGroup(group)

    def forget_topic(self, topic_id: uuid.UUID) -> None:
        """Forgets a topic that is deleted, in all groups. A full disk is retried by the next start."""
        with contextlib.suppress(RequestError):
            for group in list(self._open):
                if any(place[0] == topic_id for place in self._open[group]):
                    self.forget(group, topic_id)

    def expire(self) -> None:
        """Forgets groups that have neither members nor records."""
        self._store_recovered()
        for name in [name for name in self.groups if not self.members(name) and name not in self._open]:
            del self.groups[name]

    def close(self) -> None:
        self._membership.close()
        for shares in self._open.values():
            for share in shares.values():
                self._close(share)

    def _replace(self, share: OpenShare | None) -> None:
        """Closes what is no longer the group's; members that wait for its records get an error."""
        if share is not None:
            self._close(share)
            share.wake()

    def _attach(self, share: OpenShare) -> None:
        """A share partition is in use: its timer runs, and retention hears what it needs."""
        share.state.parking.started_ms = self._store.started_ms
        share.hold = lambda now_ms: share.needed_from(self.config(share.key.group), now_ms)
        share.log.holds.add(share.hold)
        if not share.state.parking.is_complete:
            share.reader_for(self.config(share.key.group))
            self._scan_later(share)
        share.name_exhausted()
        self._watch(share)

    def _close(self, share: OpenShare) -> None:
        share.is_closed = True
        share.close_notices()
        if share.hold is not None:
            share.log.holds.discard(share.hold)
        if share.timer is not None:
            share.timer.cancel()
            share.timer = None

    def _store_recovered(self) -> None:
        """Stores what a start has changed; a full disk is retried in each round of retention."""
        for share in list(self._unstored):
            try:
                if not share.is_closed:
                    self._store.store({share.key: share.state}, whole=True)
            except RequestError as refused:
                logger.warning(
                    "%s: share group %s is not stored: %s", share.log.name, share.key.group, refused
                )
                return
            self._unstored.remove(share)


_DEFAULTS = ShareConfig()
