"""Redis: the rows of a view as keys of a cache.

A batch is one script, and to all others a script is one step. It checks that the claims are still valid
and the offsets are those that we left (a Redis that was restarted from an older file has others), writes
and deletes the rows, and moves the offsets. So an older value never replaces a newer one, whichever
process writes. A deletion leaves nothing in Redis: an old value cannot come back, because its offset is
before the partition's.

    PREFIX KEY                              a row: a JSON string, or a hash with a field for each column
    headwater.sink:state:SINK:PREFIX        a hash: N:claim and N:offset of each partition N; resets, their
                                            number; resetting, the number of the one in progress; format
    headwater.sink:versions:SINK:PREFIX     a hash: the version of each row that has one (real-time views)

Any text may be a row's key, so the sink keeps its own state under names that no prefix of rows may begin
with. Earlier versions kept it among the rows; `MOVE` brings it here, in one step.

A reset removes rows in many steps. Nothing is claimed, and so nothing is written, before it has ended.
Each step checks that its reset is still in progress, so a process that was suspended in a reset removes
nothing of later rows.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from headwater.address import options, shown
from headwater.decoders import from_json
from headwater.errors import UnavailableError, UsageError, one_line
from headwater.formats import REDIS_SINK
from headwater.sink.batch_rows import NewestChange, newest_changes
from headwater.sink.claims import NOTHING, Claims, PartitionState, superseded
from headwater.sink.store import Batch, Poison, SinkFeed, Store, Superseded
from headwater.sink.stores.optional_library import import_library

__all__ = ["Redis"]

TIMEOUT_S = 10.0
SCAN_KEYS = 1_000
"""The number of keys in one step of a reset; other clients are served between two steps."""

OWN = "headwater.sink:"
"""The prefix of the keys in which sinks keep their own state."""

MOVE = """
local state, versions, old, old_versions = unpack(KEYS)
if redis.call('EXISTS', state) == 1 then return end
local kind = redis.call('TYPE', old).ok
if kind == 'none' then return end
local ours = kind == 'hash'
if ours then
  for _, name in ipairs(redis.call('HKEYS', old)) do
    local part = string.find(name, '^%d+:claim$') or string.find(name, '^%d+:offset$')
    ours = ours and (part or name == 'resetting')
  end
end
if not ours then
  redis.call('HSET', state, 'resets', '1', 'resetting', '1')
  return
end
redis.call('RENAME', old, state)
if redis.call('TYPE', old_versions).ok == 'hash' then redis.call('RENAME', old_versions, versions) end
if redis.call('HEXISTS', state, 'resetting') == 1 then
  redis.call('HSET', state, 'resets', '1', 'resetting', '1')
end
redis.call('RPUSH', old, state)
"""
"""Moves the state that an earlier version kept among the rows.

If a row has replaced that state, it is lost: all rows are removed and filled again. A list stays in the
old place. A process of the earlier version would begin at the log's start there; the list's type makes it
fail."""

CLAIM = """
local format = tonumber(redis.call('HGET', KEYS[1], 'format') or '1')
if format > tonumber(ARGV[1]) then return format end
if redis.call('HEXISTS', KEYS[1], 'resetting') == 1 then return false end
redis.call('HSET', KEYS[1], 'format', ARGV[1])
local found = {}
for i = 2, #ARGV do
  local n = ARGV[i]
  found[2 * i - 3] = redis.call('HINCRBY', KEYS[1], n .. ':claim', 1)
  found[2 * i - 2] = redis.call('HGET', KEYS[1], n .. ':offset')
end
return found
"""
"""Returns claims and offsets; nothing while a reset is in progress; only the format if it is newer than
ours."""

APPLY = """
local state, versions = KEYS[1], KEYS[2]
local form, partitions = ARGV[1], tonumber(ARGV[2])
local at = 3
for i = 1, partitions do
  local number = ARGV[at]
  if redis.call('HGET', state, number .. ':claim') ~= ARGV[at + 1] then return {number} end
  local offset = redis.call('HGET', state, number .. ':offset') or ''
  if offset ~= ARGV[at + 2] then return {number, offset} end
  at = at + 4
end
local known = redis.call('EXISTS', versions) == 1
local simple = tonumber(ARGV[at])
for from = 1, simple, 1000 do
  local pairs, names = {}, {}
  for i = from, math.min(from + 999, simple) do
    names[#names + 1] = KEYS[2 + i]
    pairs[#pairs + 1] = KEYS[2 + i]
    pairs[#pairs + 1] = ARGV[at + i]
  end
  redis.call('MSET', unpack(pairs))
  if known then redis.call('HDEL', versions, unpack(names)) end
end
at = at + simple + 1
for i = 3 + simple, #KEYS do
  local key, op, version, value = KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2]
  at = at + 3
  local held = false
  if op == 'set' and version ~= '' then
    local old = redis.call('HGET', versions, key)
    held = old and tonumber(version) < tonumber(old)
  end
  if not held then
    if op == 'del' then
      redis.call('DEL', key)
    elseif form == 'json' then
      redis.call('SET', key, value)
    else
      redis.call('DEL', key)
      redis.call('HSET', key, unpack(cmsgpack.unpack(value)))
    end
    if version ~= '' then
      redis.call('HSET', versions, key, version)
      known = true
    elseif known then
      redis.call('HDEL', versions, key)
    end
  end
end
at = 3
for i = 1, partitions do
  if ARGV[at + 3] ~= '' then redis.call('HSET', state, ARGV[at] .. ':offset', ARGV[at + 3]) end
  at = at + 4
end
return {}
"""

RESET = """
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  if string.find(entries[i], ':offset$') then redis.call('HDEL', KEYS[1], entries[i])
  elseif string.find(entries[i], ':claim$') then redis.call('HINCRBY', KEYS[1], entries[i], 1) end
end
redis.call('DEL', KEYS[2])
local number = redis.call('HINCRBY', KEYS[1], 'resets', 1)
redis.call('HSET', KEYS[1], 'resetting', number)
return number
"""

REMOVE = """
if redis.call('HGET', KEYS[1], 'resetting') ~= ARGV[1] then return 0 end
if #KEYS > 1 then redis.call('UNLINK', unpack(KEYS, 2)) end
if ARGV[2] == 'last' then redis.call('HDEL', KEYS[1], 'resetting') end
return 1
"""

OPTIONS = (
    *("db", "username", "password", "protocol", "client_name", "max_connections", "retry_on_timeout"),
    *("health_check_interval", "socket_timeout", "socket_connect_timeout", "socket_keepalive"),
)
"""The options that an address may have after its ``?``: with others the driver fails at the first
connection."""
TLS_OPTIONS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_cert_reqs"),
    "ssl_check_hostname",
)


class Redis:
    """``hw.sink.Redis("redis://localhost", form="json")``: a key for each row.

    Keys begin with ``prefix``, by default ``<topic>:``, and belong to the sink alone.
    """

    kind = "redis"
    typed = False

    def __init__(self, url: str, *, prefix: str = "", form: Literal["json", "hash"] = "json") -> None:
        if form not in {"json", "hash"}:
            raise UsageError("Redis: unknown form", got=repr(form), expected="'json' or 'hash'")
        self._url = url
        self._prefix = prefix
        self._form = form

    def __repr__(self) -> str:
        return f"Redis({shown(self._url)!r})"

    def place(self, topic: str) -> str:
        return f"{shown(self._url)}, keys {self._prefix or f'{topic}:'}*"

    def check(self, feed: SinkFeed) -> None:
        prefix = self._prefix or f"{feed.topic}:"
        if prefix.startswith(OWN) or OWN.startswith(prefix):
            raise UsageError(
                f"sink {feed.sink}: keys that begin with {OWN!r} are reserved for sinks",
                got=f"prefix {prefix!r}",
                hint="give the sink another prefix=",
            )
        tls = self._url.startswith("rediss://")
        hint = "" if tls else "options of TLS begin with ssl_ and need rediss://"
        options(f"sink {feed.sink}", self._url, OPTIONS + TLS_OPTIONS if tls else OPTIONS, hint=hint)
        if feed.append:
            raise UsageError(
                f"sink {feed.sink}: Redis keeps the newest row of a key",
                got=f"{feed.topic!r}, in which each record is a row of its own",
                hint="give the view a key",
            )

    def open(self, feed: SinkFeed) -> Store:
        self.check(feed)
        library = import_library("redis", "cache")
        try:
            client = library.Redis.from_url(
                self._url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
            )
        except ValueError:  # which quotes the address
            raise UsageError(
                f"sink {feed.sink}: {shown(self._url)!r} is not an address of Redis",
                expected="redis://, rediss:// or unix://",
            ) from None
        return _RedisStore(
            client,
            library.exceptions,
            feed,
            address=shown(self._url),
            prefix=self._prefix or f"{feed.topic}:",
            form=self._form,
        )


class _RedisStore:
    """Rows and offsets of one sink in one Redis."""

    def __init__(
        self, client: Any, errors: Any, feed: SinkFeed, *, address: str, prefix: str, form: str
    ) -> None:
        self._errors = errors
        self._client = client
        self._address = address
        self._prefix = prefix
        self._form = form
        self._feed = feed
        self._state = f"{OWN}state:{feed.sink}:{prefix}"
        self._versions = f"{OWN}versions:{feed.sink}:{prefix}"
        self._claims = Claims(feed.sink)
        texts = (MOVE, CLAIM, APPLY, RESET, REMOVE)
        self._scripts = {text: client.register_script(text) for text in texts}
        with self._translated():
            if client.info("cluster").get("cluster_enabled"):
                raise UsageError(
                    f"sink {feed.sink}: {address} is a Redis Cluster",
                    hint="in a cluster a batch is one step only for keys of one slot;"
                    " give the address of a single Redis",
                )
            old = f"{prefix}_headwater:{feed.sink}"
            self._scripts[MOVE](keys=[self._state, self._versions, old, f"{old}:versions"])
            self._check_format(int(client.hget(self._state, "format") or 1))

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        arguments = [REDIS_SINK.newest, *numbers]
        with self._translated():
            while (answer := self._scripts[CLAIM](keys=[self._state], args=arguments)) is None:
                unfinished = self._client.hget(self._state, "resetting")
                if unfinished is not None:
                    self._remove_rows(int(unfinished))
        if isinstance(answer, int):
            self._check_format(answer)
        return self._claims.take(
            {
                number: PartitionState(int(claim), NOTHING if offset is None else int(offset))
                for number, claim, offset in zip(numbers, answer[::2], answer[1::2], strict=True)
            }
        )

    def apply(self, batch: Batch) -> None:
        rows = newest_changes(self._claims.new_changes(batch))
        offsets = self._claims.new_offsets(batch)
        keys = [self._state, self._versions]
        arguments: list[Any] = [self._form, len(batch.upto)]
        for number in batch.upto:
            left = self._claims.offset(number)
            arguments += [
                number,
                self._claims.claim(number),
                "" if left == NOTHING else left,
                offsets.get(number, ""),
            ]
        simple = {key: row for key, row in rows.items() if self._is_simple(row)}
        keys += [self._prefix + key for key in simple]
        arguments += [len(simple), *(row.change.value for row in simple.values())]
        for key, row in rows.items():
            if key not in simple:
                keys.append(self._prefix + key)
                arguments += self._operation(row)
        with self._translated():
            refused = self._scripts[APPLY](keys=keys, args=arguments)
        if refused:
            self._refuse(*refused)
        self._claims.advance(offsets)

    def reset(self) -> None:
        with self._translated():
            number = self._scripts[RESET](keys=[self._state, self._versions])
            finished = self._remove_rows(int(number))
        self._claims.clear()
        if not finished:
            raise Superseded(f"sink {self._feed.sink}: another process has finished its reset")

    def close(self) -> None:
        self._client.close()

    def _refuse(self, number: bytes, offset: bytes | None = None) -> None:
        """Raises why the script has done nothing: another claim, or not the offset that we left."""
        if offset is not None:
            self._claims.check_offset(int(number), int(offset) if offset else NOTHING)
        raise superseded(self._feed.sink, int(number))

    def _check_format(self, stored: int) -> None:
        REDIS_SINK.check(stored, f"key {self._state!r} of Redis at {self._address}")

    def _is_simple(self, row: NewestChange) -> bool:
        """Whether a row just replaces the one before: the script writes many such rows at a time."""
        return self._form == "json" and row.change.value is not None and row.change.version is None

    def _operation(self, row: NewestChange) -> list[Any]:
        """The script's arguments for a row.

        An empty version makes it forget the stored version, and write.
        """
        change = row.change
        if change.value is None:
            return [b"del", b"", b""]
        value = change.value.encode() if self._form == "json" else _fields(row)
        version = b"" if change.version is None else change.version
        return [b"replace" if row.was_deleted else b"set", version, value]

    def _remove_rows(self, number: int) -> bool:
        """Removes all rows in steps, while that reset is in progress.

        False if another process has finished it.

        An interrupted reset is finished by the next claim.
        """
        escaped = "".join("\\" + letter if letter in "*?[]^\\" else letter for letter in self._prefix)
        remove = self._scripts[REMOVE]
        cursor = 0
        while True:
            cursor, keys = self._client.scan(cursor, match=escaped + "*", count=SCAN_KEYS)
            for first in range(0, len(keys), SCAN_KEYS):
                if not remove(keys=[self._state, *keys[first : first + SCAN_KEYS]], args=[number, ""]):
                    return False
            if not cursor:
                return bool(remove(keys=[self._state], args=[number, "last"]))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except (errors.AuthenticationError, errors.NoPermissionError) as error:
            raise UsageError(f"Redis at {self._address} refuses us", got=one_line(error)) from error
        except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
            raise UnavailableError(
                f"Redis at {self._address} does not answer", got=type(error).__name__
            ) from error
        except errors.RedisError as error:  # out of memory, a replica, loading, misconfigured: it may pass
            raise UnavailableError(
                f"Redis at {self._address} refuses to write", got=one_line(error)
            ) from error


def _fields(row: NewestChange) -> bytes:
    """The columns of a row as names and texts, for a hash; a null is left out."""
    change = row.change
    try:
        columns = from_json(change.value or "{}", dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        reason = f"the value is not a JSON object: {error}"
        raise Poison(change.partition, change.offset, reason) from error
    fields: list[str] = []
    for name, raw in columns.items():
        text = bytes(raw)
        if text != b"null":
            fields += [name, msgspec.json.decode(text, type=str) if text[:1] == b'"' else text.decode()]
    return msgspec.msgpack.encode(fields or ["", ""])
