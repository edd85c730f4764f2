"""Headers that say how a queue is to deliver a record: when, how soon, how long, and as which one."""

from datetime import UTC, datetime

from headwater.declare.duration import pause_ms
from headwater.errors import UsageError
from headwater.queue_headers import DUE_HEADER, EXPIRES_HEADER, ID_HEADER, PRIORITY_HEADER

__all__ = ["RecordHeaders", "delivery_headers", "wait_ms"]

PRIORITIES = range(10)
DELAY_MS_MAX = 100 * 366 * 86_400_000
WAIT_MS_MAX = 366 * 86_400_000
"""The log's own limit of the delay of a release."""
ID_CHARACTERS_MAX = 200

RecordHeaders = tuple[tuple[str, bytes | None], ...]


def delivery_headers(
    now_ms: int,
    *,
    delay: str = "",
    at: datetime | None = None,
    priority: int | None = None,
    expires: str | datetime | None = None,
    id: str = "",  # noqa: A002 (the word users expect)
) -> RecordHeaders:
    """The headers of a record that is written now. UsageError names what is wrong.

    delay, at    it is delivered after that time, or at that time
    priority     9 before 0; 4 if nothing is said
    expires      it is not delivered after that time, which is a duration or a time
    id           a queue that looks for duplicates delivers one record of this id
    """
    if delay and at is not None:
        raise UsageError("a record has both delay= and at=", expected="one of them")
    due_ms = now_ms + _pause(delay, "delay") if delay else None
    if at is not None:
        due_ms = _time(at, "at")
    headers: dict[str, int | str] = {}
    if due_ms is not None:
        headers[DUE_HEADER] = due_ms
    if priority is not None:
        headers[PRIORITY_HEADER] = _priority(priority)
    if expires is not None:
        until = now_ms + _pause(expires, "expires") if isinstance(expires, str) else _time(expires, "expires")
        if until <= max(due_ms or 0, now_ms):
            raise UsageError(
                "a record expires before it is delivered",
                got=f"expires={expires!r}",
                expected="a time after its delay and after now",
            )
        headers[EXPIRES_HEADER] = until
    if id:
        if not isinstance(id, str) or len(id) > ID_CHARACTERS_MAX:
            raise UsageError(
                "id= is wrong", got=repr(id)[:80], expected=f"at most {ID_CHARACTERS_MAX} characters"
            )
        headers[ID_HEADER] = id
    return tuple((name, str(value).encode()) for name, value in headers.items())


def wait_ms(now_ms: int, *, delay: str = "", until: datetime | None = None) -> int:
    """How long it is until then, at most a year. UsageError names what is wrong."""
    if bool(delay) == (until is not None):
        raise UsageError("a message is deferred by delay= or until=", expected="one of them")
    length_ms = max(0, _time(until, "until") - now_ms) if until is not None else _pause(delay, "delay")
    if length_ms > WAIT_MS_MAX:
        raise UsageError(
            "a message is deferred for too long", got=delay or str(until), expected="at most a year"
        )
    return length_ms


def _priority(priority: object) -> int:
    if type(priority) is not int or priority not in PRIORITIES:
        raise UsageError("a priority is wrong", got=repr(priority), expected="0 to 9")
    return priority


def _pause(text: object, name: str) -> int:
    if not isinstance(text, str):
        raise UsageError(
            f"{name}= is not a duration", got=repr(text), expected="text like '10s' or '2 hours'"
        )
    try:
        length_ms = pause_ms(text)
    except UsageError as error:
        raise UsageError(f"{name}=: {error}") from error
    if length_ms > DELAY_MS_MAX:
        raise UsageError(f"{name}= is too long", got=repr(text), expected="at most 100 years")
    return length_ms


def _time(time: object, name: str) -> int:
    if not isinstance(time, datetime):
        raise UsageError(f"{name}= is not a time", got=repr(time), expected="a datetime with a time zone")
    if time.tzinfo is None:
        raise UsageError(
            f"{name}= has no time zone",
            got=repr(time),
            expected="a time that is the same everywhere",
            hint="datetime.now(UTC) and datetime(…, tzinfo=UTC) have one",
        )
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86_400 + since.seconds) * 1000 + -(-since.microseconds // 1000))
