"""Workers in threads of a test, and what they leave in the log."""

import threading
import uuid
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

import headwater as hw
from headwater.client.client import Client, producer
from headwater.errors import HeadwaterError
from headwater.worker.loop import Loop
from support.servers import create_topic, wait_until

LOG_S = 30


class Mail(hw.Event):
    number: int
    to: str = ""


def application(topic):
    app = hw.App("post")
    app.stream("mails", Mail, key="to", time=hw.ARRIVAL, topic=topic)
    return app


def fresh():
    return f"mails-{uuid.uuid4().hex[:8]}"


def made(bootstrap, topic, partitions=2, **settings):
    return create_topic(AdminClient({"bootstrap.servers": bootstrap}), topic, partitions, **settings)


def produce(bootstrap, topic, *values, key=None, **options):
    sender = producer(bootstrap)
    for value in values:
        sender.produce(topic, value, key, **options)
    assert sender.flush(60) == 0


def numbers(bootstrap, topic, *wanted, to=""):
    produce(
        bootstrap, topic, *(b'{"number": %d, "to": "%s"}' % (n, to.encode()) for n in wanted), key=to or None
    )


def read(bootstrap, topic):
    client = Client(bootstrap)
    try:
        return list(client.read([topic]))
    finally:
        client.close()


def started(bootstrap, app, name=None, **options):
    """A loop, and its thread, whose error `ended` raises."""
    graph = app.graph()
    worker = graph.workers[name] if name else next(iter(graph.workers.values()))
    loop = Loop(bootstrap, graph, worker, **options)
    errors = []

    def run():
        try:
            loop.run()
        except HeadwaterError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=f"test of {worker.name}", daemon=True)
    thread.start()
    return loop, thread, errors


@contextmanager
def running(bootstrap, app, name=None, **options):
    loop, thread, errors = started(bootstrap, app, name, **options)
    try:
        yield loop
    finally:
        loop.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors


def wait_empty(loop):
    """Until everything is settled, as the log says."""
    wait_until(lambda: loop.lag_records == 0, what="a queue without messages")
