"""The device's side of split execution: runs heads, packs what crosses, and gets the results from a server."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import jax
import jax.numpy as jnp

from aspen_jax.errors import InputError, LinkError
from aspen_jax.split import codec, split_pb2, split_pb2_grpc
from aspen_jax.split.halves import Halves, most_bytes, num_bytes
from aspen_jax.split.handed_out import HandedOut
from aspen_jax.split.printable import printable
from aspen_jax.split.quantise import checked_bits
from aspen_jax.split.security import Tls, check_address, check_plain_text, check_token
from aspen_jax.split.stream import Stream, link_error, metadata, open_channel

# How often a request is sent again because the server had ended its stream in order before it read it.
_MOST_TRIES = 3
_RECORDS_KEPT = 1024
_BYTES_OF_A_MESSAGE = 4096


@dataclasses.dataclass(frozen=True)
class Record:
    """What one call took; times in seconds.

    Attributes:
        cut: where the function was cut.
        bits: of a float on the link; None for all of them.
        head: the head's time on this side.
        pack: what packing took.
        link: from sending to the answer, without the server's time.
        tail: the tail's time on the server.
        server: the server's time, the tail's included.
        sent_bytes: of the packed tensors.
        received_bytes: of the packed results.
    """

    cut: int
    bits: int | None
    head: float
    pack: float
    link: float
    tail: float
    server: float
    sent_bytes: int
    received_bytes: int


@dataclasses.dataclass(frozen=True)
class _Plan:
    cut: int
    bits: int | None
    codec: Any
    bandwidth: float
    is_local: bool


class _Call:
    """One call on its way through the stages."""

    def __init__(self, number: int, plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any], client: Client):
        self.id, self.plan, self.args, self.kwargs, self.client = number, plan, args, kwargs, client
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self.request: Any = None
        self.tries = 0
        self.begun = self.computed = self.packed = self.sent = 0.0

    def answered(self, answer: Any) -> None:
        try:
            self.client._answered(self, answer)
        except Exception as error:  # the call ends all the same
            self.client._fail(self, error)


class Client:
    """Calls a function whose head runs here and whose tail runs on a server.

    A call goes through three stages, each in a thread of its own: compute, pack, transfer. Several calls are on their way at
    once, so that in the long run calls take what the slowest stage takes, not the sum. Each call ends once: by its result or by
    an error. Any thread may call.

    Attributes:
        records: what the last calls took, the latest at the end.
    """

    def __init__(
        self,
        address: str,
        function: Callable[..., Any] | Halves | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cut: int = 0,
        bits: int | None = None,
        codec: Any = "auto",
        bandwidth: float = 12.5e6,
        token: str | None = None,
        tls: Tls | None = None,
        plain_text: bool = False,
        deadline: float = 60.0,
        depth: int = 8,
    ):
        """Trace the function. The first call connects.

        Args:
            address: HOST:PORT of a server.
            function: the function that the server has too, with its weights closed over; or its `Halves`, which clients of
                several servers may share. A text is a name in the server's table: the server then hands out the head.
            args: arguments to trace it for; arrays, `jax.ShapeDtypeStruct`, or trees of them. None for `Halves` or a name.
            kwargs: arguments by name, likewise.
            cut: 0 runs all on the server, the last cut (`num_cuts` - 1) all here.
            bits: of a float on the link, 1 to 16; None sends floats as they are.
            codec: as `pack` takes it.
            bandwidth: of the link in bytes a second, from which the codec is chosen.
            token: what the server wants to see.
            tls: certificates; None is plain text, to this machine alone.
            plain_text: whether plain text may go to other machines.
            deadline: seconds that the server may take for an answer. The first one for a cut waits until the tail is compiled.
            depth: calls on their way at once. Further ones wait in the caller. Take more for a link of long delay.

        Raises:
            InputError: an argument does not fit.
            LinkError: `function` is a name, and the server does not hand out its head.
        """
        if deadline <= 0 or depth < 1:
            raise InputError(f"deadline={deadline!r} and depth={depth!r} must be positive")
        host = check_address(address)
        check_token(token)
        if tls is None:
            check_plain_text(host, plain_text)
        self._address, self._token, self._tls, self._deadline, self._depth = address, token, tls, deadline, depth
        self._halves: Halves | HandedOut
        if isinstance(function, str):
            self._halves = HandedOut(function, self._ask)
        else:
            self._halves = function if isinstance(function, Halves) else Halves(function, args, kwargs)
        self.records: collections.deque[Record] = collections.deque(maxlen=_RECORDS_KEPT)
        self._numbers = itertools.count(1)
        self._slots = threading.Semaphore(depth)
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._stream: Stream | None = None
        self._is_closed = False
        self._computing = ThreadPoolExecutor(1, "aspen-split-head")
        self._packing = ThreadPoolExecutor(1, "aspen-split-pack")
        self.configure(cut, bits, codec=codec, bandwidth=bandwidth)

    # --- What a user calls ---

    @property
    def num_cuts(self) -> int:
        """How many cuts the function has."""
        return self._halves.num_cuts

    def configure(self, cut: int, bits: int | None = None, *, codec: Any = "auto", bandwidth: float = 12.5e6) -> None:
        """Cut elsewhere, or send other bits, from the next call on. Calls on their way keep what they began with.

        Raises:
            InputError: there is no such cut, or so many bits are not possible.
        """
        self._halves.check(cut)
        checked_bits(bits)
        is_local = isinstance(self._halves, Halves) and cut == self._halves.num_cuts - 1
        self._plan = _Plan(cut, bits, codec, bandwidth, is_local)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as `submit(*args, **kwargs).result()`."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call; waits while `depth` calls are on their way.

        Args:
            *args: as the function takes them. A head that the server handed out has weights and static arguments in it.
            **kwargs: likewise.

        Returns:
            A future with the function's result, a tree of JAX arrays. In asyncio: `await asyncio.wrap_future(future)`. It raises
            `LinkError` where the server is lost, late or refuses, and what the head raises.

        Raises:
            LinkError: the client is closed.
        """
        self._slots.acquire()
        with self._lock:
            if self._is_closed:
                self._slots.release()
                raise _closed()
            call = _Call(next(self._numbers), self._plan, args, kwargs, self)
            self._calls[call.id] = call
            self._computing.submit(self._compute, call)
        return call.future

    def map(self, *iterables: Iterable[Any]) -> Iterator[Any]:
        """Call the function for each item, as Python's `map` does; up to `depth` calls are on their way at once."""
        futures: collections.deque[Future[Any]] = collections.deque()
        for args in zip(*iterables, strict=False):
            if len(futures) == self._depth:
                yield futures.popleft().result()
            futures.append(self.submit(*args))
        while futures:
            yield futures.popleft().result()

    def close(self) -> None:
        """End connection and threads. Calls on their way end with a `LinkError`. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            stream = self._stream
        self._computing.shutdown(cancel_futures=True)
        self._packing.shutdown(cancel_futures=True)
        if stream is not None:
            stream.give_up(_closed())
            stream.join()
        for call in list(self._calls.values()):
            self._fail(call, _closed())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- The stages ---

    def _compute(self, call: _Call) -> None:
        try:
            call.begun = time.perf_counter()
            crossing = jax.block_until_ready(self._halves.head(call.plan.cut)(*call.args, **call.kwargs))
            call.computed = time.perf_counter()
            if call.plan.is_local:
                assert isinstance(self._halves, Halves)
                self._finish(
                    call,
                    self._halves.tail(call.plan.cut)(*crossing),
                    Record(call.plan.cut, call.plan.bits, call.computed - call.begun, 0, 0, 0, 0, 0, 0),
                )
                return
            self._packing.submit(self._pack, call, crossing)
        except Exception as error:
            self._fail(call, _closed() if self._is_closed else error)

    def _pack(self, call: _Call, crossing: Sequence[Any]) -> None:
        try:
            plan = call.plan
            tensors = codec.pack(crossing, plan.bits, plan.codec, bandwidth=plan.bandwidth)
            call.request = split_pb2.Request(id=call.id, model=self._halves.fingerprint, cut=plan.cut, tensors=tensors)
            call.packed = time.perf_counter()
        except Exception as error:
            self._fail(call, error)
        else:
            self._try_to_send(call)

    def _try_to_send(self, call: _Call) -> None:
        try:
            self._send(call)
        except Exception as error:
            self._fail(call, error)

    def _send(self, call: _Call) -> None:
        call.tries += 1
        call.sent = time.perf_counter()
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._stream is None or not self._stream.send(call):
                longest = most_bytes(self._halves.results) + _BYTES_OF_A_MESSAGE
                channel = open_channel(self._address, self._tls, longest)
                self._stream = Stream(self._address, channel, self._token, self._deadline, self._ended)
                if not self._stream.send(call):  # it has failed already
                    raise self._stream.reason or self._unasked()

    def _answered(self, call: _Call, answer: Any) -> None:
        if not answer.HasField("tensors"):
            name = _name_of(answer.refusal.reason)
            text = f"the server at {self._address} refused ({name}): {printable(answer.refusal.message)}"
            self._fail(call, LinkError(text, name))
            return
        round_trip = time.perf_counter() - call.sent
        server = min(answer.server_ns / 1e9, round_trip)
        try:
            results = self._halves.results
            limits = codec.Limits(most_bytes(results), sum(map(num_bytes, results)), len(results))
            leaves = [jnp.asarray(array) for array in codec.unpack(answer.tensors, results, limits)]
        except Exception as error:
            self._fail(call, LinkError(f"the answer of the server at {self._address} does not fit: {printable(str(error))}"))
            return
        record = Record(
            cut=call.plan.cut,
            bits=call.plan.bits,
            head=call.computed - call.begun,
            pack=call.packed - call.computed,
            link=round_trip - server,
            tail=answer.compute_ns / 1e9,
            server=server,
            sent_bytes=len(call.request.tensors),
            received_bytes=len(answer.tensors),
        )
        self._finish(call, self._halves.returned(leaves), record)

    def _ended(self, left: Sequence[_Call], error: LinkError | None) -> None:
        """A stream ended before these calls were answered. If it ended in order, the server has not read them."""
        for call in left:
            if error is not None:  # one for each: callers raise them
                self._fail(call, LinkError(str(error), error.reason))
            elif call.tries >= _MOST_TRIES:
                self._fail(call, self._unasked())
            else:
                self._try_to_send(call)

    def _unasked(self) -> LinkError:
        return LinkError(f"the server at {self._address} ends its streams unasked; see whether it is shutting down")

    def _finish(self, call: _Call, result: Any, record: Record) -> None:
        if self._calls.pop(call.id, None) is not None:
            self.records.append(record)
            call.future.set_result(result)
            self._slots.release()

    def _fail(self, call: _Call, error: Exception) -> None:
        if self._calls.pop(call.id, None) is not None:
            call.future.set_exception(error)
            self._slots.release()

    def _ask(self, question: Any) -> Any:
        with open_channel(self._address, self._tls, -1) as channel:
            try:
                stub = split_pb2_grpc.SplitStub(channel)
                return stub.Describe(question, timeout=self._deadline, metadata=metadata(self._token))
            except grpc.RpcError as error:
                raise link_error(self._address, error) from None


def _name_of(reason: int) -> str:
    """The name of a refusal's reason; a newer server may have further ones."""
    reasons = split_pb2.Refusal.Reason
    return reasons.Name(reason) if reason in reasons.values() else reasons.Name(reasons.UNKNOWN)


def _closed() -> LinkError:
    return LinkError("the client was closed; make another one", "CLOSED")
