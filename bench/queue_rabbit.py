"""RabbitMQ's Python clients as the workers of ``bench/queues.py``; runs in an environment of its own.

    queue_rabbit.py pika|aio-pika PORT

``drain QUEUE GROUP MESSAGES`` on standard input: handles so many with an empty handler, acknowledges each, and prints how long that took.
"""

import asyncio
import json
import struct
import sys
import time

WORKERS = 16
PREFETCH = 250
PRIMER = -1
"""In place of a time: not counted, the answer says that the worker gets messages."""


class Counting:
    """The empty handler, and when it was called."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.first = self.last = 0
        self.latencies: list[int] = []

    def handle(self, body: bytes) -> bool:
        """Whether that was the last message."""
        now, published = time.monotonic_ns(), struct.unpack_from(">q", body)[0]
        if published == PRIMER:
            say("{}")
            return False
        self.first = self.first or now
        self.latencies.append(now - published)
        if len(self.latencies) == self.wanted:
            self.last = now
        return len(self.latencies) >= self.wanted

    def answer(self) -> str:
        settled = sorted(self.latencies[len(self.latencies) // 10 :])
        p50, p99 = (settled[int((len(settled) - 1) * share)] / 1e6 for share in (0.5, 0.99))
        seconds = (self.last - self.first) / 1e9
        return json.dumps({"messages": self.wanted, "seconds": seconds, "p50_ms": p50, "p99_ms": p99})


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def drain_pika(port: int, queue: str, wanted: int) -> None:
    import pika  # noqa: PLC0415  one of several, in an environment of its own

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel, counting = connection.channel(), Counting(wanted)
    channel.basic_qos(prefetch_count=PREFETCH)

    def handle(_channel: object, method: object, _properties: object, body: bytes) -> None:
        over = counting.handle(body)
        channel.basic_ack(method.delivery_tag)
        if over:
            channel.stop_consuming()

    for _ in range(WORKERS):
        channel.basic_consume(queue, handle)
    channel.start_consuming()
    connection.close()
    say(counting.answer())


async def drain_aio_pika(port: int, queue: str, wanted: int) -> None:
    import aio_pika  # noqa: PLC0415  one of several, in an environment of its own

    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    counting, over = Counting(wanted), asyncio.Event()

    async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        last = counting.handle(message.body)
        await message.ack()
        if last:
            over.set()

    for _ in range(WORKERS):
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        await (await channel.get_queue(queue)).consume(handle)
    await over.wait()
    await connection.close()
    say(counting.answer())


def main() -> None:
    library, port = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        _, queue, _, wanted = line.split()
        if library == "pika":
            drain_pika(port, queue, int(wanted))
        else:
            import uvloop  # noqa: PLC0415  one of several, in an environment of its own

            uvloop.run(drain_aio_pika(port, queue, int(wanted)))


if __name__ == "__main__":
    main()
