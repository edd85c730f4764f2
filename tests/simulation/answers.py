"""What confluent_kafka's clients answer in the simulated world: messages, errors, the topics of the log."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headwater.record import Record
from simulation.actors import Hub
from simulation.network import Link

__all__ = ["Message", "Metadata", "Place", "again_s", "failed", "insist", "listed"]

AGAIN_S = 0.2
Place = tuple[str, int]


def again_s(hub: Hub) -> float:
    """Between two tries."""
    return max(AGAIN_S, hub.slack / 8)


def failed(code: int, text: str = "") -> KafkaException:
    return KafkaException(KafkaError(code, text or None))


class Message:
    """A record, or an error or the end of a partition in the place of one."""

    def __init__(
        self, place: Place, offset: int, record: Record | None = None, error: KafkaError | None = None
    ) -> None:
        self._place, self._offset, self._record, self._error = place, offset, record, error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> Any:
        return self._record.value if self._record is not None else self._error.str()

    def headers(self) -> list[tuple[str, bytes]] | None:
        return list(self._record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.timestamp

    def error(self) -> KafkaError | None:
        return self._error


@dataclass
class Metadata:
    """What ``list_topics`` gives."""

    topics: dict[str, Any]


@dataclass
class _Topic:
    partitions: dict[int, int]
    error: None = None


async def insist(link: Link, seconds: float, question: Callable[[], Any]) -> Any:
    """Asks until there is an answer, or the time is up: then what librdkafka says."""
    limit = link.hub.loop.time() + (60.0 if seconds < 0 else seconds)
    while True:
        try:
            async with asyncio.timeout_at(limit):
                return await question()
        except TimeoutError:
            raise failed(KafkaError._TIMED_OUT) from None
        except ConnectionError:
            if link.hub.loop.time() + again_s(link.hub) >= limit:
                code = link.network.chance.choice((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN))
                raise failed(code) from None
            await asyncio.sleep(again_s(link.hub))


def listed(link: Link, topic: str | None, timeout: float) -> Metadata:
    """The topics of the log, or one of them."""

    async def ask() -> Metadata:
        wanted = None if topic is None else [{"name": topic}]
        answer = await link.ask("Metadata", 9, topics=wanted, allow_auto_topic_creation=False)
        return Metadata(
            {
                each.name: _Topic({part.partition_index: part.leader_id for part in each.partitions})
                for each in answer.topics
                if not each.error_code and not (topic is None and each.is_internal)
            }
        )

    return link.hub.wait(insist(link, timeout, ask))
