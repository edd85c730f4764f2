"""The embedded broker as a process: from settings to a server, until a signal ends it."""

import asyncio
import contextlib
import logging
import resource
import signal
import ssl
import sys
from collections.abc import Callable

import uvloop

from headwater.config import Settings, is_loopback
from headwater.door.kafka.listener.server import Server
from headwater.errors import RequestError, StorageError, UsageError, one_line
from headwater.log.broker import Broker

__all__ = ["serve"]

SWITCH_INTERVAL_S = 0.0005
"""How long a compacting thread may keep the interpreter from the event loop; Python's default is 5 ms."""

logger = logging.getLogger(__name__)


def serve(settings: Settings, announce: Callable[[str], object] = logger.info) -> None:
    """Runs the embedded broker of the settings until SIGTERM or SIGINT, then closes it cleanly."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(_serve(settings, announce))


async def _serve(settings: Settings, announce: Callable[[str], object]) -> None:
    folder = settings.embedded
    if folder is None:
        raise UsageError(
            "the settings name an Apache Kafka, so there is no broker to start", got=settings.log
        )
    _check_exposure(settings)
    _warn_of_passwords(settings)
    _allow_open_files()
    tls = _tls(settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        broker = Broker(folder, flush=settings.flush, partitions=settings.partitions)
    except (OSError, RequestError) as error:
        raise StorageError(
            f"data folder {folder} cannot be written",
            got=one_line(error),
            hint="free disk space there, or give this user the right to write",
        ) from error
    server = Server(broker, settings.host, settings.broker_port, users=settings.users, tls=tls)
    try:
        await server.start()
        host, port = server.address
        announce(f"broker ready on {host}:{port}, data in {folder}, flush {settings.flush}")
        await stopped.wait()
    finally:
        await server.stop()


def _allow_open_files() -> None:
    """Raises the limit of open files: each connection, and each segment that is read, is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_exposure(settings: Settings) -> None:
    """A host that other machines can reach needs users."""
    if settings.users or settings.insecure or is_loopback(settings.host):
        return
    raise UsageError(
        f"host {settings.host} can be reached from other machines, and clients need no password",
        hint="set users, or insecure = true if the network itself is safe",
    )


def _warn_of_passwords(settings: Settings) -> None:
    """SASL PLAIN sends the password itself: without TLS, anybody on the network can read it."""
    if settings.users and not settings.tls_certificate and not is_loopback(settings.host):
        logger.warning(
            "passwords are sent unencrypted: host %s can be reached from other machines, and there is no "
            "tls_certificate; set one, or let only a trusted network reach port %s",
            settings.host,
            settings.broker_port,
        )


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None)
    except OSError as error:
        raise UsageError(
            f"setting 'tls_certificate' cannot be used: {error}",
            got=settings.tls_certificate,
            expected="a PEM file",
        ) from error
    return context
