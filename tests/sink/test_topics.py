"""Questions about topics, and what becomes of those who asked."""

import socket
import weakref
from concurrent.futures import wait

from headwater.client import Client, admin
from headwater.sink.topics import ask, known_as


def test_a_client_is_kept_until_its_answer_though_nobody_holds_it():
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
