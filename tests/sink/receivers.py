"""Real receivers of effects: an HTTP and an SMTP server on loopback that keep what they get."""

import json
import socketserver
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headwater.access import Access
from headwater.sink.store import SESSION_MS, SinkFeed
from sink.contract import COLUMNS
from support.servers import wait_until


def effect_feed(
    bootstrap: str, sink: str | None = None, topic: str | None = None, session_ms: int = SESSION_MS
) -> SinkFeed:
    """A feed of a topic and sink that no other test knows."""
    name = topic or f"orders-{uuid.uuid4().hex[:8]}"
    return SinkFeed(
        sink or f"{name}.out", name, ("id",), COLUMNS, log=Access(bootstrap), session_ms=session_ms
    )


class Received:
    """One call that a receiver got."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        self.headers = headers
        self.body = body
        self.id = headers.get("webhook-id", "")
        self.data = json.loads(body)["data"]
        self.type = json.loads(body)["type"]
        self.mode = json.loads(body)["mode"]


Answer = Callable[[Received], int | tuple[int, dict[str, str]]]


class WebReceiver:
    """Remembers every call, also those that it answers with an error; ``answer`` says with what."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook/t0ken"
        self.calls: list[Received] = []
        self.taken: list[Received] = []
        """Those that it has answered with a 2xx."""
        self.answer: Answer = lambda _: 204
        self.lock = threading.Lock()

    def ids(self) -> list[str]:
        return [call.id for call in list(self.taken)]

    def totals(self) -> list[tuple[str, float]]:
        return [(call.data["id"], call.data.get("total")) for call in list(self.taken)]


@contextmanager
def web_receiver() -> Iterator[WebReceiver]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            call = Received({name.lower(): value for name, value in self.headers.items()}, body)
            with receiver.lock:
                receiver.calls.append(call)
            answer = receiver.answer(call)
            status, headers = answer if isinstance(answer, tuple) else (answer, {})
            if 200 <= status < 300:
                with receiver.lock:
                    receiver.taken.append(call)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A caller that was killed is expected."""

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = WebReceiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


class MailReceiver:
    """Keeps every mail; ``answer`` is its answer to a recipient, by address."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mails: list[tuple[str, list[str], Message]] = []
        self.answer: Callable[[str], str] = lambda _: "250 fine"


@contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(line.encode() + b"\r\n")

        def handle(self) -> None:
            sender, to = "", []
            self.say("220 here")
            while line := self.rfile.readline().decode().strip():
                verb = line[:4].upper()
                if verb == "MAIL":
                    sender, to = line.split(":", 1)[1].split()[0].strip("<>"), []
                    self.say("250 fine")
                elif verb == "RCPT":
                    address = line.split(":", 1)[1].strip().strip("<>")
                    said = receiver.answer(address)
                    if said.startswith("250"):
                        to.append(address)
                    self.say(said)
                elif verb == "DATA":
                    self.say("354 continue")
                    text = b""
                    while (part := self.rfile.readline()) != b".\r\n":
                        text += part
                    receiver.mails.append((sender, to, message_from_bytes(text)))
                    self.say("250 taken")
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 fine")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = MailReceiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()


def attempts(store) -> dict[str, int]:
    """For each key with unfinished effects, the failed attempts of the first one."""
    with store._courier._lock:
        entries = [entry for queue in store._courier._queues.values() for entry in queue.entries.values()]
        return {entry.effect.key: entry.attempts for entry in sorted(entries, key=lambda e: -e.effect.offset)}


def idle(store) -> None:
    wait_until(lambda: store.waiting() == 0, 10, "nothing waits")


def failed(store, **times: int) -> None:
    """The attempts that have failed, by key, are those."""
    wait_until(lambda: attempts(store).items() >= times.items(), 10, f"failed attempts: {times}")


@contextmanager
def opening(bootstrap: str, make: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Opens the sink of one feed again and again, each time as ``make`` declares it.

    All are closed at the end.
    """
    feed, stores = effect_feed(bootstrap), []

    def start(*given: Any, claim: Collection[int] = (0,), **settings: Any) -> Any:
        target = make(*given, **settings)
        target.check(feed)
        stores.append(target.open(feed))
        stores[-1].claim(claim)
        return stores[-1]

    start.feed = feed
    yield start
    for store in stores:
        store.close()
