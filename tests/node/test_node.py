"""What the node takes for a sign of life of its processes."""

import socket
import threading
import types

import pytest

from headwater.config import Settings
from headwater.declare.app import App
from headwater.node.node import Node


def test_an_answer_that_is_not_http_is_none():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(999)
                connection.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert not Node._console_answers(
            types.SimpleNamespace(settings=types.SimpleNamespace(console_token=""), url=url)
        )
        thread.join()


@pytest.fixture
def node(tmp_path):
    settings = Settings(log=f"embedded:{tmp_path}", broker_port=0, console_port=0)
    return Node(settings, tmp_path / "app.py", App("shop").graph())


def test_a_pipeline_with_the_process_id_of_an_earlier_one_is_not_ready_before_it_says_so(node, tmp_path):
    """As in a container, where each life begins with the same ids."""
    part = node._pipeline()
    for name in ("pipeline.pid", "pipeline.ready"):
        (tmp_path / "run" / name).write_text("31")
    assert part.ready()
    part.forget()
    assert not part.ready()
    part.forget()
