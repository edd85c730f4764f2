"""The Kafka clients of our code in the simulated world: what ``headwater.client`` and ``headwater.bulk`` make reaches the life's broker.

    with simulated(loop, clock, lambda: life.broker, seed) as (hub, network):
        ...                                              # see actors.py; then, inside of an actor, code as it is:
        client = Client("life:9092")                     # headwater.client.Client, consumer(), producer(), admin()
        producer = transactions("life:9092", "name")     # the real BulkProducer, on simulated connections

Only the classes of confluent_kafka (``Consumer``, ``Producer``, ``AdminClient``) and ``headwater.client.bulk.connection.BrokerConnection`` are replaced. Requests are
encoded, handled by the real handlers and decoded (tests/support/protocol.py). ``broker()`` gives None while the broker is down: callers get KafkaException with
``_TRANSPORT``, ``_ALL_BROKERS_DOWN`` or ``_TIMED_OUT``, and MachineError of `Transactions`. A broker that is replaced by another object has lost all
connections; a life that crashes its broker cancels all tasks but those in ``hub.tasks``. ``network.slow`` and ``network.losses`` make the network worse.

Groups are real: members join the broker's coordinator, and heartbeats end while their actor sleeps (member.py). A session of half an hour
(``session_ms=1_800_000``) with ``hub.slack = 600`` lets days pass at little cost.
"""

import asyncio
import random
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from confluent_kafka import KafkaError, KafkaException

from headwater.client import client
from headwater.client.bulk import cluster
from headwater.client.partitioner import murmur2
from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.record import Record, encode_batch
from simulation import network as networks
from simulation.actors import Hub, current_hub
from simulation.answers import Message, Metadata, failed, insist, listed
from simulation.consumer import Consumer
from simulation.network import Connection, Link, Network
from simulation.world import Loop, Time

__all__ = ["AdminClient", "Consumer", "Message", "Producer", "simulated"]

AGAIN_S = 0.1
RETRIED = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@contextmanager
def simulated(
    loop: Loop, clock: Time, broker: Callable[[], Broker | None], seed: int
) -> Iterator[tuple[Hub, Network]]:
    """Our code's clients reach ``broker()``; its time and its chance are the life's."""
    hub = Hub(loop, clock, random.Random(seed))
    network = Network(hub, broker)
    networks._networks.append(network)
    try:
        with (
            hub,
            mock.patch.object(client, "Consumer", Consumer),
            mock.patch.object(client, "Producer", Producer),
            mock.patch.object(client, "AdminClient", AdminClient),
            mock.patch.object(cluster, "BrokerConnection", Connection),
        ):
            yield hub, network
    finally:
        networks._networks.remove(network)
        for answer in Answer.open:
            answer.cancel()
        Answer.open.clear()


class Answer(Future):
    """A future of the admin client: an actor that waits for it lets virtual time pass."""

    open: ClassVar[set["Answer"]] = set()
    """Those of the life; none is left when it ends, as `headwater.client.topic_watch` waits for them when the process does."""

    def __init__(self, task: asyncio.Task) -> None:
        super().__init__()
        self._task = task
        self.open.add(self)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task) -> None:
        self.open.discard(self)
        if self.cancelled():
            task.cancelled() or task.exception()
        elif task.cancelled():
            self.set_exception(failed(KafkaError._DESTROY))
        elif task.exception() is not None:
            self.set_exception(task.exception())
        else:
            self.set_result(task.result())

    def result(self, timeout: float | None = None) -> Any:
        hub = current_hub()
        if not self.done():
            hub.wait(asyncio.wait({self._task}, timeout=timeout))
            if not self.done():
                raise TimeoutError
        return super().result(0)


class AdminClient:
    """Topics are created and described."""

    def __init__(self, options: dict[str, Any], logger: object = None) -> None:  # noqa: ARG002
        self._hub, self._link = current_hub(), Link()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        return listed(self._link, topic, timeout)

    def _asked(self, timeout: float, question: Callable[[], Any]) -> Answer:
        self._hub.check()
        return Answer(self._hub.task(insist(self._link, timeout, question)))

    def create_topics(self, topics: Sequence[Any], request_timeout: float = 60) -> dict[str, Answer]:
        return {
            each.topic: self._asked(request_timeout, lambda each=each: self._create(each)) for each in topics
        }

    async def _create(self, topic: Any) -> None:
        config = [{"name": name, "value": value} for name, value in (topic.config or {}).items()]
        wanted = {
            "name": topic.topic,
            "num_partitions": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "configs": config,
            "assignments": [],
        }
        answer = await self._link.ask(
            "CreateTopics", 5, topics=[wanted], timeout_ms=1000, validate_only=False
        )
        if answer.topics[0].error_code:
            raise failed(answer.topics[0].error_code)

    def describe_topics(self, topics: Any, request_timeout: float = 60) -> dict[str, Answer]:
        return {
            name: self._asked(request_timeout, lambda name=name: self._describe(name))
            for name in topics.topic_names
        }

    async def _describe(self, name: str) -> SimpleNamespace:
        answer = await self._link.ask(
            "Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False
        )
        found = answer.topics[0]
        if found.error_code:
            raise failed(found.error_code)
        shown = urlsafe_b64encode(found.topic_id.bytes).decode().rstrip("=")
        return SimpleNamespace(name=name, topic_id=shown, partitions=list(found.partitions))

    def describe_configs(self, resources: Sequence[Any], request_timeout: float = 60) -> dict[Any, Answer]:
        return {
            each: self._asked(request_timeout, lambda each=each: self._config(each.name))
            for each in resources
        }

    async def _config(self, name: str) -> dict[str, SimpleNamespace]:
        wanted = [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]
        answer = await self._link.ask("DescribeConfigs", 4, resources=wanted)
        found = answer.results[0]
        if found.error_code:
            raise failed(found.error_code)
        return {each.name: SimpleNamespace(name=each.name, value=each.value) for each in found.configs}


class Producer:
    """An idempotent producer. Records leave with `flush`, one batch each, in order."""

    def __init__(self, options: dict[str, Any], logger: object = None) -> None:  # noqa: ARG002
        self._hub, self._link = current_hub(), Link()
        self._timeout_s = int(options.get("message.timeout.ms", 300_000)) / 1000
        self._waiting: list[tuple[str, int, Record, Any, float]] = []
        self._id: tuple[int, int] | None = None
        self._sequences: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        return listed(self._link, topic, timeout)

    def produce(  # noqa: PLR0917  the library's own
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        self._hub.check()
        pairs = headers.items() if isinstance(headers, dict) else headers or ()
        sent = tuple((name, _bytes(each)) for name, each in pairs)
        record = Record(_bytes(key), _bytes(value), sent, timestamp or self._hub.clock.now_ms())
        limit = self._hub.loop.time() + self._timeout_s
        self._waiting.append((topic, partition, record, on_delivery, limit))

    def poll(self, timeout: float = 0) -> int:  # noqa: ARG002
        self._hub.pause()
        return 0

    def flush(self, timeout: float = -1) -> int:
        """How many records are left without an answer."""
        hub = self._hub
        hub.check()
        limit = hub.loop.time() + (3600 if timeout < 0 else timeout)
        while self._waiting and hub.loop.time() < limit:
            topic, partition, record, report, until = self._waiting[0]
            task = hub.task(self._deliver(topic, partition, record, until))
            try:
                error = hub.wait(task, limit - hub.loop.time())
            except TimeoutError:
                task.cancel()
                break
            self._waiting.pop(0)
            if report is not None:
                report(error, Message((topic, partition), -1, record, error))
        return len(self._waiting)

    async def _deliver(self, topic: str, partition: int, record: Record, until: float) -> KafkaError | None:
        place: tuple[str, int] | None = None
        while self._hub.loop.time() < until:
            try:
                place = place or (topic, await self._choose(topic, partition, record.key))
                code = await self._send(place, record)
            except KafkaException as error:
                return error.args[0]
            except (ConnectionError, TimeoutError):
                code = ErrorCode.REQUEST_TIMED_OUT
            if not code:
                self._sequences[place] = self._sequences.get(place, 0) + 1
                return None
            if code not in RETRIED:
                self._id = None
                return KafkaError(code)
            await asyncio.sleep(AGAIN_S)
        self._id = None  # the record may be in the log: its number must not be used for another
        return KafkaError(KafkaError._MSG_TIMED_OUT)

    async def _choose(self, topic: str, partition: int, key: bytes | None) -> int:
        if partition >= 0:
            return partition
        answer = await self._link.ask(
            "Metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False
        )
        count = len(answer.topics[0].partitions)
        if not count:
            raise ConnectionError(f"topic {topic} is not known")
        return (murmur2(key) if key is not None else self._link.network.chance.getrandbits(16)) % count

    async def _send(self, place: tuple[str, int], record: Record) -> int:
        if self._id is None:
            answer = await self._link.ask(
                "InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60_000
            )
            if answer.error_code:
                return answer.error_code
            self._id, self._sequences = (answer.producer_id, answer.producer_epoch), {}
        number = self._sequences.get(place, 0)
        data = encode_batch(
            [record], base_sequence=number, producer_id=self._id[0], producer_epoch=self._id[1]
        )
        topics = [{"name": place[0], "partition_data": [{"index": place[1], "records": data}]}]
        answer = await self._link.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
        return answer.responses[0].partition_responses[0].error_code


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
