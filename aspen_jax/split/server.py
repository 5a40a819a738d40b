"""A server of split execution in this process: grpc.aio around `Servicer`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
from grpc import aio

from aspen_jax.errors import InputError
from aspen_jax.split import split_pb2_grpc
from aspen_jax.split.security import Tls, check_plain_text, check_port
from aspen_jax.split.servicer import Offer, PeerLimits, Servicer

# A peer that is gone is noticed within two of these. One that greets slowly, or not at all, is shut out.
_KEEPALIVE_MS = 20_000
_HANDSHAKE_MS = 10_000
# Of a message beside its tensors: the other fields, and the longest refusal.
_BYTES_OF_A_MESSAGE = 4096


class Server:
    """A server that `serve` started. Stop it with `stop`, or by leaving `with serve(...) as server:`.

    Attributes:
        address: HOST:PORT, for clients.
        fingerprints: the fingerprint of each function by its name.
    """

    def __init__(self, servicer: Servicer, host: str, port: int, limits: PeerLimits, credentials: grpc.ServerCredentials | None):
        """Listen, in a thread with an event loop of its own; `serve` has the arguments."""
        self.fingerprints = servicer.fingerprints()
        self._servicer = servicer
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._grace = 0.0
        bound: Future[int] = Future()
        name = f"[{host}]" if ":" in host and not host.startswith("[") else host
        main = self._main(f"{name}:{port}", limits, credentials, bound)
        self._thread = threading.Thread(target=_run, args=(self._loop, main), name="aspen-split-server", daemon=True)
        self._thread.start()
        try:
            self.address = f"{name}:{bound.result()}"
        except RuntimeError as error:
            self._thread.join()
            servicer.close()
            raise InputError(f"nothing can listen at {name}:{port}: {error}; take another host or port") from error

    async def _main(self, where: str, limits: PeerLimits, credentials: grpc.ServerCredentials | None, bound: Future[int]) -> None:
        try:
            service = _service(self._servicer, limits)
            port = service.add_insecure_port(where) if credentials is None else service.add_secure_port(where, credentials)
            await service.start()
        except Exception as error:
            bound.set_exception(RuntimeError(str(error)))
            return
        bound.set_result(port)
        await self._stopping.wait()
        await service.stop(self._grace)

    def stop(self, grace: float = 5.0) -> None:
        """Take no further requests, and end. A second call does nothing.

        Args:
            grace: seconds that streams have to end by themselves. Then they are cancelled.
        """
        if self._thread.is_alive():
            self._grace = grace
            with contextlib.suppress(RuntimeError):  # another thread has stopped it
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._servicer.close()

    def wait(self) -> None:
        """Wait until another thread stops the server."""
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(grace=0)


def serve(
    functions: Mapping[str, Offer | tuple[Any, Sequence[Any]]],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    tls: Tls | None = None,
    plain_text: bool = False,
    limits: PeerLimits | None = None,
    threads: int = 1,
) -> Server:
    """Run tails for clients, in threads of this process, until the server is stopped.

    Args:
        functions: a name for each function; an `Offer`, or a pair of function and arguments.
        host: the address to listen at. Others than loopback need `tls`, or `plain_text`.
        port: 0 takes a free one; `Server.address` says which.
        token: what clients must show; None admits all.
        tls: certificates; None is plain text.
        plain_text: whether plain text may leave this machine.
        limits: what clients may take.
        threads: tails that run at once.

    Raises:
        InputError: an argument does not fit, or nothing can listen at that address.

    Example:
        >>> with split.serve({"net": (net, (image,))}) as server:
        ...     client = split.Client(server.address, net, (image,), cut=12, bits=4)
        ...     print(client(image))
    """
    limits = limits or PeerLimits()
    check_port(port)
    if tls is None:
        check_plain_text(host, plain_text)
    credentials = None if tls is None else tls.for_server()
    offers = {name: item if isinstance(item, Offer) else Offer(*item) for name, item in functions.items()}
    servicer = Servicer(offers, token=token, limits=limits, threads=threads)
    return Server(servicer, host, port, limits, credentials)


def _service(servicer: Servicer, limits: PeerLimits) -> aio.Server:
    longest = servicer.longest_message + _BYTES_OF_A_MESSAGE
    service = aio.server(
        maximum_concurrent_rpcs=limits.streams + 1,  # one more, so that the servicer refuses with a reason
        options=[
            ("grpc.max_receive_message_length", longest),
            ("grpc.max_send_message_length", -1),  # heads that are handed out have weights in them
            ("grpc.max_concurrent_streams", limits.streams_of_a_host + 1),
            ("grpc.max_metadata_size", 8192),
            ("grpc.max_allowed_incoming_connections", 4 * limits.streams),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.settings_timeout", _HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", int(1000 * limits.seconds)),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
            ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 4),
            ("grpc.so_reuseport", 0),  # two servers at one port would be a mistake
        ],
        compression=grpc.Compression.NoCompression,  # tensors are packed already
    )
    split_pb2_grpc.add_SplitServicer_to_server(servicer, service)
    return service


def _run(loop: asyncio.AbstractEventLoop, main: Any) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
