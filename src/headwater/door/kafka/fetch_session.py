"""Incremental fetch sessions (KIP-227): a client names a partition once, and is answered when it has changed.

    session id 0, epoch 0     a full fetch that begins a session
    session id 0, epoch -1    a full fetch without a session
    session id N, epoch E     the next fetch of a session: E counts up
    session id N, epoch -1    ends the session

No I/O. The event loop owns the cache; a session belongs to the client that knows its id.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field

from headwater.errors import ErrorCode, RequestError
from headwater.protocol.kafka.codec import Message

__all__ = ["FetchSession", "FetchSessions"]

SESSIONS_MAX = 1000
FINAL_EPOCH = -1
EPOCH_END = 2**31
ID_END = 2**31

Key = tuple[object, int]
"""Topic id or name, and partition."""
State = tuple[int, int, int]
"""High watermark, last stable offset and log start offset, as last sent to the client."""


@dataclass(slots=True)
class FetchSession:
    """The partitions that one client fetches."""

    id: int
    epoch: int = 1
    wanted: dict[Key, tuple[Message, Message]] = field(default_factory=dict)
    sent: dict[Key, State] = field(default_factory=dict)

    def is_news(self, key: Key, now: State, *, filled: bool, failed: bool = False) -> bool:
        """Whether a partition belongs in the answer; it then counts as sent.

        An error is sent for as long as it lasts.
        """
        if failed:
            self.sent.pop(key, None)
            return True
        if filled or self.sent.get(key) != now:
            self.sent[key] = now
            return True
        return False

    def put_last(self, key: Key) -> None:
        """Moves a partition to the end, after it was in an answer: an answer has room only for some."""
        if key in self.wanted:
            self.wanted[key] = self.wanted.pop(key)


class FetchSessions:
    """The sessions of one broker; beyond a limit the least recently used one is forgotten."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def enter(self, body: Message, version: int) -> FetchSession | None:
        """The session of a fetch, updated by it; None for a fetch without a session."""
        if version < 7 or (body.session_id == 0 and body.session_epoch == FINAL_EPOCH):
            return None
        if body.session_epoch == FINAL_EPOCH:
            self._sessions.pop(body.session_id, None)
            return None
        if body.session_epoch == 0:
            self._sessions.pop(body.session_id, None)
            session = FetchSession(self._new_id())
            self._sessions[session.id] = session
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        else:
            session = self._next(body.session_id, body.session_epoch)
        _update(session, body, version)
        return session

    def _new_id(self) -> int:
        """Random, so that a client of an earlier run of the broker never gets the session of another."""
        while True:
            session_id = random.randrange(1, ID_END)  # noqa: S311  not for secrets
            if session_id not in self._sessions:
                return session_id

    def _next(self, session_id: int, epoch: int) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if epoch != session.epoch:
            raise RequestError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"epoch {epoch} where {session.epoch} is next"
            )
        session.epoch = epoch + 1 if epoch + 1 < EPOCH_END else 1
        self._sessions.move_to_end(session_id)
        return session


def _update(session: FetchSession, body: Message, version: int) -> None:
    by_id = version >= 13
    for topic in body.forgotten_topics_data:
        for index in topic.partitions:
            key = (topic.topic_id if by_id else topic.topic, index)
            session.wanted.pop(key, None)
            session.sent.pop(key, None)
    for topic in body.topics:
        for part in topic.partitions:
            key = (topic.topic_id if by_id else topic.topic, part.partition)
            session.wanted[key] = topic, part
            session.sent.pop(key, None)
