"""Forgotten: the rows of a topic that begins anew and do not come again.

A truncate says that all rows are gone, and says nothing of single ones: who knows rows by their key alone, as views and sinks do, passes
over it. So each row that the new snapshot does not have is deleted as well, in the transaction of the snapshot.
"""

from collections.abc import Iterable, Iterator

from headwater.capture.envelope import Around, deleted
from headwater.capture.source import Part
from headwater.client import Client

__all__ = ["Forgotten"]


class Forgotten:
    """Looks through the parts of one reading. Holds the keys of a topic in memory from its truncate to the end of its snapshot."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._left: dict[str, tuple[Around, set[bytes]]] = {}

    def through(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts, and behind a snapshot that began with a truncate the deletes of the rows that are gone."""
        for part in parts:
            for around in part.emptied:
                self._left[around.topic] = (around, self._keys(around.topic))
            yield self._without(part) if self._left else part

    def _keys(self, topic: str) -> set[bytes]:
        """The keys that a reader of the topic has who takes no notice of truncates."""
        keys: set[bytes] = set()
        if topic in self._client.partitions():
            for message in self._client.read([topic]):
                if message.value() is None:
                    keys.discard(message.key())
                elif message.key() is not None:
                    keys.add(message.key())
        return keys

    def _without(self, part: Part) -> Part:
        for topic, key, _, _ in part.records:
            if key is not None and topic in self._left:
                self._left[topic][1].discard(key)
        if part.position is None:
            return part
        gone = [
            record
            for around, keys in self._left.values()
            for key in keys
            for record in deleted(around, key.decode("latin-1"), key.decode("latin-1"))
        ]
        self._left.clear()
        return part._replace(records=[*part.records, *gone])
