"""Link: the connection of a share consumer to one broker, with the requests that are not answered yet."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from headwater.client.bulk.connection import BrokerConnection
from headwater.client.bulk.routes import refusal
from headwater.client.share.session import Ack, Acks, Place, ShareSession, TransactionIdentity
from headwater.protocol.kafka.codec import Message
from headwater.record import CONTROL, BatchHeader, Record, open_batch, whole_batches

__all__ = ["Delivery", "Link", "Refused", "RefusedError"]

REQUESTS_MAX = 32
"""Requests without an answer; further acknowledgements wait and go together."""


class Delivery(NamedTuple):
    """A record that this member holds."""

    topic: str
    place: Place
    record: Record
    deliveries: int
    """How often it was delivered, this time included."""


class Refused(NamedTuple):
    """An acknowledgement that does not count, and why."""

    place: Place
    ack: Ack
    why: str


class RefusedError(Exception):
    """Acknowledgements of a transaction that do not count. The other ones of the request do."""

    def __init__(self, refused: list[Refused]) -> None:
        super().__init__(refused[0].why)
        self.refused = refused


class _Sent(NamedTuple):
    api: str
    acks: Acks
    at: float
    records_max: int = 0
    """Of a fetch."""
    in_transaction: "Future[None] | None" = None


class Link:
    """Belongs to one thread. Raises OSError if the connection is lost, RequestError if the session is."""

    def __init__(self, connection: BrokerConnection, session: ShareSession, now: Callable[[], float]) -> None:
        self.connection = connection
        self.session = session
        self.stale_places = False
        """Whether the broker has said that it does not lead a partition."""
        self._now = now
        self._sent: deque[_Sent] = deque()

    @property
    def asked_records(self) -> int:
        """How many records the fetch without an answer may bring."""
        return sum(sent.records_max for sent in self._sent)

    @property
    def is_fetching(self) -> bool:
        return any(sent.records_max for sent in self._sent)

    @property
    def may_send(self) -> bool:
        return len(self._sent) < REQUESTS_MAX

    @property
    def silent_since(self) -> float | None:
        """Since when the oldest request has no answer."""
        return self._sent[0].at if self._sent else None

    @property
    def is_settled(self) -> bool:
        return not self._sent and not self.session.has_acks

    def fetch(self, records_max: int, wait_ms: int) -> None:
        request, acks = self.session.fetch(records_max, wait_ms)
        answered_by = self._now() + wait_ms / 1000
        self._send("ShareFetch", request, _Sent("ShareFetch", acks, answered_by, records_max))

    def tell(self) -> None:
        request, acks = self.session.tell()
        self._send("ShareAcknowledge", request, _Sent("ShareAcknowledge", acks, self._now()))

    def tell_in_transaction(
        self, acks: Acks, identity: TransactionIdentity, answered: "Future[None]"
    ) -> None:
        """``answered`` gets the outcome; acknowledgements that are refused are not in `receive`'s."""
        request = self.session.tell_in_transaction(acks, identity)
        sent = _Sent("ShareAcknowledge", acks, self._now(), in_transaction=answered)
        self._send("ShareAcknowledge", request, sent)

    def end(self) -> None:
        request, acks = self.session.end()
        self._send("ShareAcknowledge", request, _Sent("ShareAcknowledge", acks, self._now()))

    def receive(self, topic_names: Callable[[Place], str]) -> Iterator[Delivery | Refused]:
        """What the answer to the oldest request says: records, and acknowledgements that do not count."""
        answer = self.connection.receive()
        sent = self._sent.popleft()
        try:
            if answer.error_code:
                raise refusal(answer.error_code, "the share session", answer.error_message)
            refused = list(self._refused(sent, answer))
        except BaseException as error:
            if sent.in_transaction is not None:
                sent.in_transaction.set_exception(error)
            raise
        if sent.in_transaction is None:
            yield from refused
        elif refused:
            sent.in_transaction.set_exception(RefusedError(refused))
        else:
            sent.in_transaction.set_result(None)
        if sent.api == "ShareFetch":
            for place, part in _parts(answer):
                yield from self._deliveries(place, part, topic_names(place))

    def close(self, error: BaseException) -> None:
        """Ends the connection; transactions that wait for an answer get the error."""
        with suppress(OSError):
            self.connection.close()
        for sent in self._sent:
            if sent.in_transaction is not None:
                sent.in_transaction.set_exception(error)
        self._sent.clear()

    def _send(self, api: str, request: Message, sent: _Sent) -> None:
        self._sent.append(sent)
        self.connection.send(api, request)

    def _refused(self, sent: _Sent, answer: Message) -> Iterator[Refused]:
        for place, part in _parts(answer):
            is_fetch = sent.api == "ShareFetch"
            if is_fetch and part.error_code:
                self.stale_places = True
            code = part.acknowledge_error_code if is_fetch else part.error_code
            if code:
                why = part.acknowledge_error_message if is_fetch else part.error_message
                acks = sent.acks.get(place, [])
                if len(acks) > 1 and sent.in_transaction is None:
                    self.session.tell_singly(place, acks)
                    continue
                text = str(refusal(code, "an acknowledgement", why))
                yield from (Refused(place, ack, text) for ack in acks)

    def _deliveries(self, place: Place, part: Message, topic: str) -> Iterator[Delivery]:
        """The records that were acquired. Offsets without a record are acknowledged as gaps."""
        counts = {
            offset: acquired.delivery_count
            for acquired in part.acquired_records
            for offset in range(acquired.first_offset, acquired.last_offset + 1)
        }
        for batch in whole_batches(part.records or b""):
            if BatchHeader.read(batch).attributes & CONTROL:
                continue
            for record in open_batch(batch):
                count = counts.pop(record.offset, None)
                if count is not None:
                    yield Delivery(topic, place, record, count)
        if counts:
            self.session.note_gaps(place, counts)


def _parts(answer: Message) -> Iterator[tuple[Place, Message]]:
    for topic in answer.responses:
        for part in topic.partitions:
            yield (topic.topic_id, part.partition_index), part
