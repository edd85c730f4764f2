"""Questions about topics, and what becomes of those who asked."""

import signal
import socket
import time
import weakref
from concurrent.futures import wait

from headwater.client.client import Client, admin
from headwater.client.topic_watch import TopicWatch, ask, known_as
from headwater.clock import SystemClock
from support.servers import BrokerProcess, wait_until


def test_a_client_is_kept_until_its_answer_though_nothing_refers_to_it():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = admin(f"127.0.0.1:{silent.getsockname()[1]}")
        answers = ask(client, ["orders"])
        held = weakref.ref(client)
        del client
        assert not any(answer.done() for answer in answers.values())
        assert held() is not None


def test_a_client_that_has_its_answer_is_let_go_with_the_next_question(bootstrap):
    Client(bootstrap).ensure_topics(["orders"], 1)
    first = admin(bootstrap)
    answer = ask(first, ["orders"])["orders"]
    assert known_as(answer.result(60))
    held = weakref.ref(first)
    del first
    wait(ask(admin(bootstrap), ["orders"]).values(), 10)
    assert held() is None


def test_a_log_that_is_away_is_looked_for_at_little_cost_and_found_again(tmp_path):
    broker = BrokerProcess(tmp_path / "log")
    broker.start()
    try:
        Client(broker.bootstrap).ensure_topics(["orders"], 1)
        watch = TopicWatch(broker.bootstrap, ["orders"], SystemClock())
        wait_until(lambda: watch.look().get("orders"), what="the topic")
        broker.end(signal.SIGKILL)

        watch.hurry()
        begun, cpu = time.monotonic(), time.process_time()
        while time.monotonic() < begun + 4:
            assert not watch.look()
            time.sleep(0.05)
        assert time.process_time() - cpu < 1.5, "seconds of CPU in four seconds"

        broker.start()
        wait_until(lambda: watch.look().get("orders"), 60, "the topic, found again")
    finally:
        broker.end(signal.SIGTERM)
