"""Share sessions: which partitions a member fetches, so that it names each only once.

    epoch 0     begins a session with the partitions of the request, in place of the member's former one
    epoch E     the next request of the session: E counts up
    epoch -1    ends the session

No I/O. The event loop owns them; a session belongs to one member, and ends with the connection of its last
request.
"""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headwater.errors import ErrorCode, RequestError

__all__ = ["FINAL_EPOCH", "Place", "ShareSession", "ShareSessions"]

SESSIONS_MAX = 2000
PLACES_MAX = 20_000
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

Place = tuple[uuid.UUID, int]
"""The id of a topic, and the number of a partition."""


@dataclass(slots=True)
class ShareSession:
    """The partitions of one member, in the order in which they are looked at."""

    group: str
    member: str
    connection: object
    """That of the last request."""
    epoch: int = 1
    """The epoch of the next request."""
    used: float = 0.0
    """When the last request came."""
    places: dict[Place, bool] = field(default_factory=dict)
    """Each partition, and whether the next answer names it even if it has nothing."""

    def add(self, places: Iterable[Place]) -> None:
        """Adds partitions; one that is named several times counts once."""
        for place in places:
            self.places.setdefault(place, True)
            if len(self.places) > PLACES_MAX:
                del self.places[place]
                what = f"a share session has at most {PLACES_MAX} partitions"
                raise RequestError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, what)

    def forget(self, places: Iterable[Place]) -> None:
        for place in places:
            self.places.pop(place, None)

    def put_last(self, place: Place) -> None:
        """Moves a partition to the end, after it was in an answer."""
        if place in self.places:
            self.places[place] = self.places.pop(place)


class ShareSessions:
    """All sessions of a broker."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        """In the order of their last requests."""
        self._sessions_max = sessions_max

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def is_full(self) -> bool:
        return len(self._sessions) >= self._sessions_max

    def silent_longest(self) -> ShareSession | None:
        return next(iter(self._sessions.values()), None)

    def begin(self, group: str, member: str, connection: object, now: float) -> ShareSession:
        """A new session, in place of the former one."""
        self._sessions.pop((group, member), None)
        if self.is_full:
            what = f"there are {self._sessions_max} share sessions"
            raise RequestError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, what)
        session = self._sessions[group, member] = ShareSession(group, member, connection, used=now)
        return session

    def next(self, group: str, member: str, epoch: int, connection: object, now: float) -> ShareSession:
        """The session of a request, whose epoch then counts up."""
        session = self.find(group, member)
        if epoch != session.epoch:
            what = f"epoch {epoch} where {session.epoch} is next"
            raise RequestError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, what)
        session.epoch = epoch + 1 if epoch < EPOCH_MAX else 1
        session.connection, session.used = connection, now
        self._sessions[group, member] = self._sessions.pop((group, member))
        return session

    def has(self, session: ShareSession) -> bool:
        """Whether a session has neither ended nor been replaced."""
        return self._sessions.get((session.group, session.member)) is session

    def get(self, group: str, member: str) -> ShareSession | None:
        return self._sessions.get((group, member))

    def find(self, group: str, member: str) -> ShareSession:
        session = self._sessions.get((group, member))
        if session is None:
            raise RequestError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member} has no session")
        return session

    def places(self, group: str, member: str) -> Collection[Place]:
        """The partitions of a member's session, if it has one."""
        session = self._sessions.get((group, member))
        return session.places if session is not None else ()

    def end(self, session: ShareSession) -> None:
        if self._sessions.get((session.group, session.member)) is session:
            del self._sessions[session.group, session.member]

    def of_connection(self, connection: object) -> list[ShareSession]:
        return [session for session in self._sessions.values() if session.connection is connection]
