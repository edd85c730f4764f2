"""ShareConsumer: records of a share group for one member, and what it says about each of them.

    assign        the partitions that the group gives the member (`Membership`)
    turn          sends fetches and acknowledgements to the leaders, and takes what has been answered
    lost          a connection or session has ended: what was held there is no longer ours

Requests are pipelined, and a broker handles those of a connection one after the other: an acknowledgement
waits until the fetch in front of it has got records, or its time is over. So callers let fetches wait shortly
while something is in work.
"""

import logging
import selectors
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from headwater.access import Log, access
from headwater.client.bulk.connection import ANSWER_S, BrokerConnection
from headwater.client.bulk.routes import CONNECT_S, Address, Routes, TopicRoute
from headwater.client.share.link import Delivery, Link, Refused
from headwater.client.share.session import Ack, Acks, Place, ShareSession, TransactionIdentity
from headwater.clock import Clock, SystemClock
from headwater.errors import ProtocolError, RequestError, one_line

__all__ = ["Assignment", "ShareConsumer", "Turn"]

PAUSES_S = (0.02, 0.1, 0.2, 0.5, 1.0)
"""Between attempts to reach a broker; the last one is repeated."""

Assignment = Mapping[uuid.UUID, Sequence[int]]
"""Partitions by topic id."""

logger = logging.getLogger(__name__)


class Turn(NamedTuple):
    """What has happened since the last one."""

    deliveries: list[Delivery]
    refused: list[Refused]
    lost: list[Place]
    """Nothing that was delivered from here before is held any more."""


class _Transaction(NamedTuple):
    acks: Acks
    identity: TransactionIdentity
    answered: "Future[None]"


class ShareConsumer:
    """One member of one group. Belongs to one thread, but for `assign`, `wake` and `in_transaction`."""

    def __init__(self, log: Log, group: str, member: str, clock: Clock | None = None) -> None:
        self.group = group
        self.member = member
        self.trouble = ""
        """Why a broker cannot be reached; empty while all can."""
        self._access = access(log)
        self._clock = clock or SystemClock()
        self._routes = Routes(log)
        self._known: dict[uuid.UUID, TopicRoute] = {}
        self._links: dict[Address, Link] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._holders: dict[Place, Address] = {}
        """The broker from which a partition's records came last."""
        self._assignment: Assignment = {}
        self._is_routed = True
        self._failures = 0
        self._retry_at = 0.0
        self._transactions: list[_Transaction] = []
        self._lock = threading.Lock()
        """For the assignment and the transactions."""
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._is_rung = False
        """Whether a byte is on its way already: one is enough for all that comes before it is heard."""
        self._selector.register(self._ear, selectors.EVENT_READ)

    # ---- from any thread -------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> None:
        """From the next turn on, these partitions are fetched."""
        with self._lock:
            self._assignment, self._is_routed = dict(assignment), False
        self.wake()

    def wake(self) -> None:
        """Ends the wait of the turn, or of the next one."""
        if self._is_rung:
            return
        self._is_rung = True
        with suppress(OSError):  # it was closed
            self._bell.send(b"!")

    def in_transaction(self, acks: Acks, identity: TransactionIdentity) -> "Future[None]":
        """Acknowledges with a transaction. The result says that the brokers know, or why they do not."""
        answered: Future[None] = Future()
        with self._lock:
            self._transactions.append(_Transaction(acks, identity, answered))
        self.wake()
        return answered

    # ---- from its own thread ---------------------------------------------------------------------------

    @property
    def is_fetching(self) -> bool:
        return any(link.is_fetching for link in self._links.values())

    @property
    def is_connected(self) -> bool:
        return bool(self._links)

    @property
    def is_settled(self) -> bool:
        """Whether every acknowledgement has been answered."""
        return not self._transactions and all(link.is_settled for link in self._links.values())

    def acknowledge(self, place: Place, *acks: Ack) -> None:
        """With the next request to the broker that has delivered the records; void if it is lost."""
        address = self._holders.get(place)
        if address is not None:
            self._links[address].session.acknowledge(place, acks)

    def turn(self, records_max: int, wait_ms: int, timeout_s: float) -> Turn:
        """Asks for at most so many records, which may take ``wait_ms``; returns when there is news.

        Raises HeadwaterError for what does not pass by itself.
        """
        turn = Turn([], [], [])
        self._route()
        self._send_transactions(turn)
        for address in list(self._links):
            self._guarded(address, turn, self._send, records_max, wait_ms)
        if not (turn.lost or turn.deliveries):
            self._listen(turn, timeout_s)
        return turn

    def close(self, limit_s: float) -> Turn:
        """Ends the sessions with the acknowledgements that are left, and waits for the answers."""
        turn = Turn([], [], [])
        for address, link in list(self._links.items()):
            if link.session.has_begun:
                self._guarded(address, turn, Link.end)
        limit = self._clock.monotonic() + limit_s
        while self._clock.monotonic() < limit and any(not link.is_settled for link in self._links.values()):
            self._listen(turn, max(0.0, limit - self._clock.monotonic()))
        for link in self._links.values():
            link.close(ConnectionAbortedError("the consumer was closed"))
        self._links.clear()
        self._fail_transactions()
        self._selector.close()
        self._bell.close()
        self._ear.close()
        self._routes.close()
        return turn

    def drop(self) -> None:
        """Closes all connections without a word, as the end of the process would."""
        for link in self._links.values():
            link.close(ConnectionAbortedError("the consumer has failed"))
        self._links.clear()
        self.close(0.0)

    # ---- links -----------------------------------------------------------------------------------------

    def _route(self) -> None:
        """Opens links to the leaders of what is assigned, unless that failed a moment ago."""
        stale = any(link.stale_places for link in self._links.values())
        if (self._is_routed and not stale) or self._clock.monotonic() < self._retry_at:
            return
        with self._lock:
            assignment, self._is_routed = self._assignment, True
        try:
            if stale or not assignment.keys() <= self._known.keys():
                self._known |= self._routes.topics(assignment) if assignment else {}
                self._names |= {topic_id: route.name for topic_id, route in self._known.items()}
            wanted: dict[Address, list[Place]] = {}
            missing = False
            for topic_id, numbers in assignment.items():
                leaders = self._known[topic_id].leaders if topic_id in self._known else {}
                for number in numbers:
                    missing |= number not in leaders
                    if number in leaders:
                        wanted.setdefault(leaders[number], []).append((topic_id, number))
            for address in wanted.keys() - self._links.keys():
                self._open(address)
        except OSError as error:
            self._note_failure(error)
            return
        for address, link in self._links.items():
            link.session.want(wanted.get(address, ()))
            link.stale_places = False
        if missing:  # a topic that was just created, or has another leader
            self._known = {}
            self._note_failure(OSError("a partition has no leader"))

    def _open(self, address: Address) -> None:
        connection = BrokerConnection(self._access, *address, CONNECT_S)
        link = Link(connection, ShareSession(self.group, self.member), self._clock.monotonic)
        self._links[address] = link
        self._selector.register(connection, selectors.EVENT_READ, address)

    def _note_failure(self, error: Exception) -> None:
        """Links are opened again after a pause."""
        pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self._retry_at = self._clock.monotonic() + pause
        self._is_routed = False
        self.trouble = f"log {self._access}: {one_line(error)}"

    def _guarded(self, address: Address, turn: Turn, act: Callable[..., None], *arguments: object) -> None:
        """Acts on a link; if its connection or session has ended, what was held there is lost."""
        link = self._links[address]
        try:
            act(link, *arguments)
        except (OSError, RequestError, ProtocolError) as error:
            del self._links[address]
            logger.info("group %s: the session with %s:%d has ended: %s", self.group, *address, error)
            self._selector.unregister(link.connection)
            link.close(error)
            lost = [place for place, holder in self._holders.items() if holder == address]
            turn.lost.extend(lost)
            for place in lost:
                del self._holders[place]
            self._known = {}
            self._note_failure(error)

    # ---- one turn --------------------------------------------------------------------------------------

    def _send(self, link: Link, records_max: int, wait_ms: int) -> None:
        left = records_max - sum(each.asked_records for each in self._links.values())
        if left > 0 and not link.is_fetching and link.session.wanted:
            link.fetch(left, wait_ms)
        if link.session.has_begun:
            while link.session.has_acks and link.may_send:
                link.tell()

    def _send_transactions(self, turn: Turn) -> None:
        """Sends acknowledgements of transactions, each whole: their records may be of several brokers."""
        with self._lock:
            transactions, self._transactions = self._transactions, []
        for acks, identity, answered in transactions:
            parts: dict[Address, dict[Place, list[Ack]]] = {}
            for place, said in acks.items():
                if place in self._holders:
                    parts.setdefault(self._holders[place], {})[place] = said
                else:
                    answered.set_exception(ConnectionResetError("what was held is lost"))
                    break
            else:
                answers = [Future[None]() for _ in parts]
                _join(answers, answered)
                for (address, part), answer in zip(parts.items(), answers, strict=True):
                    self._guarded(address, turn, Link.tell_in_transaction, part, identity, answer)

    def _listen(self, turn: Turn, timeout_s: float) -> None:
        """Takes the answers that are there, or the first ones that come."""
        now = self._clock.monotonic()
        if any(link.connection.has_bytes() for link in self._links.values()):
            timeout_s = 0.0
        elif not self._is_routed:
            timeout_s = min(timeout_s, max(0.0, self._retry_at - now))
        ready = {key.data for key, _ in self._selector.select(timeout_s)}
        if None in ready:
            self._is_rung = False  # first: who rings from now on is heard after what is done next
            with suppress(BlockingIOError):
                self._ear.recv(4096)
        for address, link in list(self._links.items()):
            if address in ready or link.connection.has_bytes():
                self._guarded(address, turn, self._receive, address, turn)
            elif link.silent_since is not None and now - link.silent_since > ANSWER_S:
                self._guarded(address, turn, _raise_silent)

    def _receive(self, link: Link, address: Address, turn: Turn) -> None:
        """Takes one answer. While none comes, brokers that were just reached count as troubled."""
        for news in link.receive(self._topic_name):
            if isinstance(news, Delivery):
                self._holders[news.place] = address
                turn.deliveries.append(news)
            else:
                turn.refused.append(news)
        self._failures, self.trouble = 0, ""

    def _topic_name(self, place: Place) -> str:
        return self._names[place[0]]

    def _fail_transactions(self) -> None:
        with self._lock:
            transactions, self._transactions = self._transactions, []
        for each in transactions:
            each.answered.set_exception(ConnectionAbortedError("the consumer was closed"))


def _raise_silent(_: Link) -> None:
    raise TimeoutError(f"no answer for {ANSWER_S:.0f} s")


def _join(parts: "Sequence[Future[None]]", whole: "Future[None]") -> None:
    """Completes a future when all its parts are done, or with the first error."""
    left = len(parts)
    lock = threading.Lock()

    def done(part: "Future[None]") -> None:
        nonlocal left
        with lock:
            left -= 1
            error = part.exception()
            if error is not None and not whole.done():
                whole.set_exception(error)
            elif left == 0 and not whole.done():
                whole.set_result(None)

    for part in parts:
        part.add_done_callback(done)
