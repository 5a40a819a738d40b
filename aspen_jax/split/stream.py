"""One gRPC stream as a client sees it: requests go out, and each call ends once, by its answer or by an error."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from aspen_jax.errors import LinkError
from aspen_jax.split import split_pb2_grpc
from aspen_jax.split.printable import printable
from aspen_jax.split.security import Tls, is_loopback

# A server that is gone without a word is noticed within two of these.
_KEEPALIVE_MS = 20_000


class Call(Protocol):
    """What waits for an answer."""

    id: int
    request: Any

    def answered(self, answer: Any) -> None: ...


def open_channel(address: str, tls: Tls | None, longest_answer: int) -> grpc.Channel:
    """A channel of its own, which shares no connection and no waiting times with others.

    Args:
        address: HOST:PORT.
        tls: certificates; None is plain text.
        longest_answer: bytes of the longest message that is accepted; -1 for any.
    """
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", int(not is_loopback(address.rpartition(":")[0]))),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", longest_answer),
    ]
    if tls is None:
        return grpc.insecure_channel(address, options, grpc.Compression.NoCompression)  # tensors are packed already
    return grpc.secure_channel(address, tls.for_client(), options, grpc.Compression.NoCompression)


def metadata(token: str | None) -> list[tuple[str, str]]:
    """What shows the token to the server."""
    return [] if token is None else [("authorization", f"Bearer {token}")]


def link_error(address: str, error: grpc.RpcError | None) -> LinkError:
    """What a status of gRPC means for a call."""
    code = error.code() if isinstance(error, grpc.Call) else None
    details = printable(str(error.details() if isinstance(error, grpc.Call) else error))
    name = code.name if code is not None else ""
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return LinkError(f"the server at {address} refused the token: {details}; pass the token that it was started with", name)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LinkError(f"the server at {address} refused: {details}; try again later", name)
    return LinkError(f"the server at {address} is lost or not there ({name}: {details}); the next call connects anew", name)


class Stream:
    """A stream that lives until either side ends it.

    The oldest call that waits is answered within `deadline` seconds of its sending, or of the last answer if that came later;
    else the stream is given up, and all its calls end with an error.

    Attributes:
        reason: why it has ended; None while it lives, and where the server has ended it in order.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.Channel,
        token: str | None,
        deadline: float,
        ended: Callable[[Sequence[Any], LinkError | None], None],
    ):
        """Open a stream.

        Args:
            address: for messages.
            channel: closed with the stream.
            token: as the server wants it.
            deadline: seconds.
            ended: gets the calls that were not answered, and why; no reason if the server has ended the stream in order, when it
                has read none of them.
        """
        self._address, self._channel, self._deadline, self._on_end = address, channel, deadline, ended
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[float, Any]] = {}
        self._last_answer = 0.0
        self._has_ended = False
        self.reason: LinkError | None = None
        self._answers = split_pb2_grpc.SplitStub(channel).Run(iter(self._outbox.get, None), metadata=metadata(token))
        self._threads = [
            threading.Thread(target=target, name=f"aspen-split-{name}", daemon=True)
            for name, target in (("receive", self._receive), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, call: Call) -> bool:
        """Send a call's request; False if the stream has ended, and nothing was sent."""
        with self._changed:
            if self._has_ended:
                return False
            self._waiting[call.id] = (time.monotonic(), call)
            self._outbox.put(call.request)
            self._changed.notify()
            return True

    def give_up(self, reason: LinkError) -> None:
        """End the stream; its calls end with this reason."""
        with self._changed:
            self.reason = self.reason or reason
        self._answers.cancel()

    def join(self) -> None:
        """Wait until the stream has ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():  # a future's callback may close the client
                thread.join()

    def _receive(self) -> None:
        try:
            for answer in self._answers:
                with self._changed:
                    _, call = self._waiting.pop(answer.id, (0.0, None))
                    self._last_answer = time.monotonic()
                if call is None:
                    self.give_up(LinkError(f"the server at {self._address} answered {answer.id}, which was not asked"))
                else:
                    call.answered(answer)
            error = None
        except grpc.RpcError as raised:
            error = link_error(self._address, raised)
        with self._changed:
            self._has_ended = True
            self.reason = self.reason or error
            left = [call for _, call in self._waiting.values()]
            self._waiting.clear()
            self._changed.notify()
        self._outbox.put(None)  # ends gRPC's thread that sends
        self._channel.close()
        self._on_end(left, self.reason)

    def _watch(self) -> None:
        with self._changed:
            while not self._has_ended:
                sent, _ = next(iter(self._waiting.values()), (None, None))
                if sent is None:
                    self._changed.wait()
                    continue
                left = max(sent, self._last_answer) + self._deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
        self.give_up(
            LinkError(f"the server at {self._address} gave no answer for {self._deadline} s; the next call connects anew", "LATE")
        )
