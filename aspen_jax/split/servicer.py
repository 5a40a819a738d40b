"""The service of split execution: runs tails for peers that it does not trust, under grpc.aio or under Ray Serve."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.split import codec, split_pb2, split_pb2_grpc
from aspen_jax.split.halves import Halves, most_bytes, num_bytes
from aspen_jax.split.handed_out import exported_head, exported_results
from aspen_jax.split.printable import printable
from aspen_jax.split.security import check_token

_LOG = logging.getLogger("aspen_jax.split")
_LONGEST_MESSAGE = 500

Refusal = split_pb2.Refusal


@dataclasses.dataclass(frozen=True)
class PeerLimits:
    """What peers may take of a server.

    Attributes:
        streams: streams at once, of all peers.
        streams_of_a_host: streams at once from one address.
        queue: requests of one stream that are worked on or wait. The server reads no further ones before it has answered.
        held_bytes: bytes of all requests together that are worked on or wait, packed and unpacked. Further ones are refused.
        seconds: how long a stream may be silent, and how long a peer may take to read an answer.
    """

    streams: int = 64
    streams_of_a_host: int = 32
    queue: int = 8
    held_bytes: int = 2**31
    seconds: float = 300.0


@dataclasses.dataclass(frozen=True)
class Offer:
    """A function that a server runs tails of.

    Attributes:
        function: a function, or one that `aspen` decorated. Its weights should be closed over, not arguments.
        args: its arguments, arrays or `jax.ShapeDtypeStruct` or trees of them.
        cuts: cuts whose tails are run; all if None. A tail is compiled when it is first asked for: offer few to strangers.
        hands_out_heads: whether a client without the model gets the head of a cut, with the weights in it.
        kwargs: arguments by name.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    cuts: Sequence[int] | None = None
    hands_out_heads: bool = False
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class _Refused(Exception):
    """One request is refused."""

    def __init__(self, reason: Any, message: str):
        super().__init__(message)
        self.reason = reason


class _Denied(Exception):
    """A whole stream is refused."""

    def __init__(self, code: grpc.StatusCode, details: str):
        super().__init__(details)
        self.code, self.details = code, details

    def tell(self, context: Any) -> None:
        context.set_code(self.code)
        context.set_details(self.details)
        if not hasattr(context, "abort"):  # Ray Serve keeps the status of a call that raises alone
            raise PermissionError(self.details) from None


class _Offered:
    """An offer that was traced."""

    def __init__(self, offer: Offer):
        self.halves = Halves(offer.function, offer.args, offer.kwargs)
        self.hands_out_heads = offer.hands_out_heads
        if not isinstance(offer.cuts, Sequence | None):
            raise InputError(f"cuts={offer.cuts!r} is no sequence of cuts; write ({offer.cuts!r},)")
        cuts = range(self.halves.num_cuts) if offer.cuts is None else offer.cuts
        for number in cuts:
            self.halves.check(number)
        self.cuts = tuple(sorted(set(map(int, cuts))))
        self.longest = self.halves.most_bytes(self.cuts)


class Servicer(split_pb2_grpc.SplitServicer):
    """Runs the tails of the functions of a table, each request's off the event loop; answers come in the order of requests.

    A request names its function by fingerprint. What it may ask for is what stands in the table: nothing in a message is run,
    imported or unpickled, and no size in it is believed. A request that does not fit is refused by itself, with a reason.

    The same class is a deployment of Ray Serve (docs/how-to/split_server.md).

    Attributes:
        longest_message: bytes of the longest request or answer that fits the table.
    """

    def __init__(
        self,
        functions: Mapping[str, Offer],
        *,
        token: str | None = None,
        limits: PeerLimits | None = None,
        threads: int = 1,
    ):
        """Trace the functions.

        Args:
            functions: a name for each, for `Describe` and the log.
            token: what a peer must send as "authorization: Bearer TOKEN"; None admits all.
            limits: what peers may take.
            threads: tails that run at once. Each uses all workers of the engine, so that one is enough for large ones.

        Raises:
            InputError: an offer names a cut that its function does not have, or the token cannot be sent.
        """
        check_token(token)
        self._offered = {name: _Offered(offer) for name, offer in functions.items()}
        self._by_fingerprint = {offered.halves.fingerprint: offered for offered in self._offered.values()}
        self._token = token
        self._limits = limits or PeerLimits()
        self._computing = ThreadPoolExecutor(threads, "aspen-split-compute")
        self._packing = ThreadPoolExecutor(2, "aspen-split-pack")
        self._held_bytes = 0
        self._streams: collections.Counter[str] = collections.Counter()
        self.longest_message = max((offered.longest for offered in self._offered.values()), default=0)

    def fingerprints(self) -> dict[str, bytes]:
        """The fingerprint of each function by its name."""
        return {name: offered.halves.fingerprint for name, offered in self._offered.items()}

    def close(self) -> None:
        """End the threads, after what they run now."""
        self._computing.shutdown(cancel_futures=True)
        self._packing.shutdown(cancel_futures=True)

    # --- The two calls. Ray Serve passes the context to a parameter of this name alone. ---

    async def Run(self, request_iterator: Any, grpc_context: Any = None) -> AsyncIterator[Any]:
        """Answers the requests of a stream, several of them in work at once. See split.proto."""
        try:
            with self._admitted(grpc_context):
                async for answer in self._answers(request_iterator):
                    with self._impatience():
                        yield answer
        except _Denied as denied:
            denied.tell(grpc_context)

    async def Describe(self, request: Any, grpc_context: Any = None) -> Any:
        """Describes a function, and hands out a head. See split.proto."""
        try:
            with self._admitted(grpc_context):
                return await self._described(request)
        except _Denied as denied:
            denied.tell(grpc_context)
            return split_pb2.Description()

    async def _described(self, request: Any) -> Any:
        offered = self._offered.get(request.name)
        if offered is None:
            raise _Denied(grpc.StatusCode.NOT_FOUND, "the server's table has no function of this name")
        asks = request.HasField("cut")
        if asks and not (offered.hands_out_heads and request.cut in offered.cuts):
            raise _Denied(grpc.StatusCode.PERMISSION_DENIED, "the server does not hand out this head")
        halves, run = offered.halves, asyncio.get_running_loop().run_in_executor
        description = split_pb2.Description(model=halves.fingerprint, cuts=halves.num_cuts, offered=offered.cuts)
        try:
            description.results = await run(self._computing, exported_results, halves)
            if asks:
                description.head = await run(self._computing, exported_head, halves, request.cut)
                description.sha256 = hashlib.sha256(description.head).digest()
        except InputError as error:
            _LOG.exception("%r cannot be handed out", request.name)
            raise _Denied(grpc.StatusCode.FAILED_PRECONDITION, printable(str(error), _LONGEST_MESSAGE)) from None
        return description

    # --- One stream ---

    @contextlib.contextmanager
    def _admitted(self, context: Any) -> Iterator[None]:
        """Counts a call from one host while it lasts."""
        if not self._authorised(context):
            raise _Denied(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")
        host = _host(context)
        if self._streams[host] >= self._limits.streams_of_a_host or self._streams.total() >= self._limits.streams:
            raise _Denied(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams at once")
        self._streams[host] += 1
        try:
            yield
        finally:
            self._streams[host] -= 1
            self._streams += collections.Counter()  # hosts without streams are forgotten

    def _authorised(self, context: Any) -> bool:
        if self._token is None:
            return True
        metadata = [] if context is None else context.invocation_metadata() or []
        sent = [value for key, value in metadata if key.lower() == "authorization"]
        expected = f"Bearer {self._token}".encode()
        given = sent[0] if len(sent) == 1 else ""
        return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), expected)

    async def _answers(self, requests: Any) -> AsyncIterator[Any]:
        """Answers in order. The queue's length bounds how many requests are in work."""
        waiting: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(self._limits.queue)
        reader = asyncio.create_task(self._read(aiter(requests), waiting))
        task = None
        try:
            while (task := await waiting.get()) is not None:
                yield await task
            await reader
        finally:
            reader.cancel()
            if task is not None:
                task.cancel()
            while not waiting.empty():
                if (left := waiting.get_nowait()) is not None:
                    left.cancel()

    async def _read(self, requests: AsyncIterator[Any], waiting: asyncio.Queue[asyncio.Task[Any] | None]) -> None:
        """Begins work on each request as it comes, until the peer has no more, is gone, or is silent for too long.

        Raises:
            _Denied: what came is no request.
        """
        try:
            while True:
                request = await asyncio.wait_for(anext(requests), self._limits.seconds)
                await waiting.put(asyncio.create_task(self._answer(request, time.perf_counter_ns())))
        except (StopAsyncIteration, TimeoutError, grpc.RpcError):
            pass
        except Exception as error:  # gRPC hands on what the parser raises
            raise _Denied(grpc.StatusCode.INVALID_ARGUMENT, f"the message is no Request ({type(error).__name__})") from None
        finally:
            await waiting.put(None)

    @contextlib.contextmanager
    def _impatience(self) -> Iterator[None]:
        """Ends work on the stream of a peer that does not read its answer in time.

        gRPC keeps this answer until the connection ends, and counts the stream to the connection's.
        """
        stream = asyncio.current_task()
        assert stream is not None
        handle = asyncio.get_running_loop().call_later(self._limits.seconds, stream.cancel)
        try:
            yield
        finally:
            handle.cancel()

    # --- One request ---

    async def _answer(self, request: Any, arrived_ns: int) -> Any:
        answer = split_pb2.Answer(id=request.id)
        try:
            offered = self._offer_of(request)
            with self._holding(len(request.tensors) + sum(map(num_bytes, offered.halves.crossing(request.cut)))):
                answer.tensors, answer.compute_ns = await self._computed(offered.halves, request)
        except _Refused as refused:
            answer.refusal.reason = refused.reason
            answer.refusal.message = printable(str(refused), _LONGEST_MESSAGE)
        answer.server_ns = time.perf_counter_ns() - arrived_ns
        return answer

    def _offer_of(self, request: Any) -> _Offered:
        offered = self._by_fingerprint.get(request.model)
        if offered is None:
            raise _Refused(Refusal.MODEL, "the server has no function of this fingerprint; use the same source, weights and JAX")
        if request.cut not in offered.cuts:
            raise _Refused(Refusal.CUT, f"cut {request.cut} is not offered; Describe says which cuts are")
        return offered

    @contextlib.contextmanager
    def _holding(self, count: int) -> Iterator[None]:
        if self._held_bytes + count > self._limits.held_bytes:
            raise _Refused(Refusal.BUSY, "the server holds as many bytes of requests as it may; send this one later")
        self._held_bytes += count
        try:
            yield
        finally:
            self._held_bytes -= count

    async def _computed(self, halves: Halves, request: Any) -> tuple[bytes, int]:
        loop = asyncio.get_running_loop()
        crossing = halves.crossing(request.cut)
        limits = codec.Limits(most_bytes(crossing), sum(map(num_bytes, crossing)), len(crossing))
        try:
            arrays = await loop.run_in_executor(self._packing, codec.unpack, request.tensors, crossing, limits)
        except InputError as error:
            raise _Refused(Refusal.TENSORS, str(error)) from None
        try:
            results, compute_ns = await loop.run_in_executor(self._computing, _run, halves, request.cut, arrays)
        except Exception as error:
            _LOG.exception("the tail of cut %d failed", request.cut)
            raise _Refused(Refusal.FAILED, f"the tail raised {type(error).__name__}; the server's log says more") from None
        return await loop.run_in_executor(self._packing, codec.pack, results), compute_ns


def _run(halves: Halves, cut: int, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
    begin = time.perf_counter_ns()
    results = [np.asarray(leaf) for leaf in halves.arrays(halves.tail(cut)(*arrays))]  # waits
    return results, time.perf_counter_ns() - begin


def _host(context: Any) -> str:
    """The address of a peer without its port, such as "ipv4:10.0.0.7"."""
    return "" if context is None else str(context.peer()).rpartition(":")[0]
