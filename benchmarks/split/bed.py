"""A test bed on one machine: a server on one core, a device on another, and a link of known bandwidth and delay between them.

The link is a forwarder of TCP in a process of its own, which needs no rights, or a pair of network namespaces with the kernel's
token bucket (`tc tbf`), which needs root and knows no delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aspen_jax.errors import AspenError

_ROOT = Path(__file__).resolve().parents[2]
_CHUNK = 4096  # bytes that leave at once
_SOCKET_BUFFER = 64 * 1024  # what a sender may be ahead of the link
_OVERSLEPT = 0.01  # seconds that timers may be late without losing bandwidth
_START = 300  # seconds within which a server has compiled nothing yet, and so listens
_END = 60  # seconds that a server may take to end; only one that hangs takes as long


@dataclasses.dataclass(frozen=True)
class Shape:
    """A link.

    Attributes:
        up: bits a second from the device to the server.
        down: bits a second back.
        delay: seconds one way.
    """

    up: float
    down: float
    delay: float


# The paper takes 3G and 4G from Ofcom's report of 2014 (its reference 48), averages over carriers; half of a round trip is the
# delay. WiFi-5 has its nominal speed for one stream of 80 MHz.
PROFILES = {
    "3G": Shape(1.6e6, 6.1e6, 0.0635 / 2),
    "4G": Shape(12.4e6, 15.1e6, 0.0531 / 2),
    "WiFi": Shape(433e6, 433e6, 0.001),
}


# --- The forwarder ---


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float, delay: float) -> None:
    """One direction: bytes leave at `rate` bytes a second, and arrive `delay` later."""
    loop = asyncio.get_running_loop()
    flying: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def arrive() -> None:
        while True:
            due, chunk = await flying.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
        writer.close()

    arriving = asyncio.create_task(arrive())
    free = loop.time()  # when the link is free again
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            free = max(free, loop.time() - _OVERSLEPT) + len(chunk) / rate
            if (left := free - loop.time()) > 0:
                await asyncio.sleep(left)
            flying.put_nowait((free + delay, chunk))
    flying.put_nowait((loop.time() + delay, b""))
    with contextlib.suppress(OSError):
        await arriving


def _forward(target: tuple[str, int], shape: Shape, ports: Any) -> None:
    """The forwarder's process."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*target, limit=2 * _CHUNK)
        await asyncio.gather(_pump(reader, back, shape.up / 8, shape.delay), _pump(there, writer, shape.down / 8, shape.delay))

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        server = await asyncio.start_server(connected, sock=listener, limit=2 * _CHUNK)
        ports.send(listener.getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextlib.contextmanager
def forwarder(address: str, shape: Shape) -> Iterator[str]:
    """A link to `address`; gives the address of its near end.

    All connections of a device are shaped each by itself: it opens one.
    """
    host, _, port = address.rpartition(":")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_forward, args=((host, int(port)), shape, sender), daemon=True)
    process.start()
    try:
        if not receiver.poll(_START):
            raise AspenError("the forwarder of the link did not start; see the messages above")
        yield f"127.0.0.1:{receiver.recv()}"
    finally:
        process.terminate()
        process.join()


# --- Network namespaces ---


def has_namespaces() -> bool:
    """Whether this process may make network namespaces with shaped links."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"aspen-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return True


@contextlib.contextmanager
def namespace(shape: Shape) -> Iterator[tuple[list[str], str]]:
    """A network namespace for the device, joined to this one by a shaped pair of interfaces.

    Gives the words to put before a command of the device, and the address at which a server outside of it listens. There is no
    delay beside that of the bucket: many kernels have no netem.
    """
    number = os.getpid() % 60000
    name, outer, inner = f"aspen-{number}", f"av{number}", f"aw{number}"
    here = f"10.{200 + number % 50}.{number // 256}"

    def run(words: str, inside: bool = False) -> None:
        prefix = ["ip", "netns", "exec", name] if inside else []
        subprocess.run([*prefix, *words.split()], check=True, capture_output=True)

    def bucket(device: str, rate: float) -> str:
        return f"tc qdisc add dev {device} root tbf rate {rate / 1e3:.0f}kbit burst 32kb latency 400ms"

    run(f"ip netns add {name}")
    try:
        run(f"ip link add {outer} type veth peer name {inner} netns {name}")
        run(f"ip addr add {here}.1/24 dev {outer}")
        run(f"ip link set {outer} up")
        run(f"ip addr add {here}.2/24 dev {inner}", inside=True)
        run(f"ip link set {inner} up", inside=True)
        run("ip link set lo up", inside=True)
        run(bucket(outer, shape.down))
        run(bucket(inner, shape.up), inside=True)
        yield ["ip", "netns", "exec", name], f"{here}.1"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


# --- Both sides ---


class Served(NamedTuple):
    """A server in a process of its own, and the address at which it listens."""

    process: subprocess.Popen[str]
    address: str


def started(core: int | None, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A process on one core, or on any if None, with JAX on the CPU."""
    bound = [] if core is None else ["taskset", "-c", str(core)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen([*bound, *command], cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, **options)


@contextlib.contextmanager
def server(function: str, core: int | None, *options: str) -> Iterator[Served]:
    """`aspen serve` as long as the context lasts.

    Args:
        function: MODULE:FUNCTION, or FILE:FUNCTION.
        core: where it runs; None for any.
        *options: of the command.

    Raises:
        AspenError: the server did not start.
    """
    main = "import sys, benchmarks; from aspen_jax.cli import main; sys.exit(main())"  # `benchmarks` finds what is installed
    child = started(core, [sys.executable, "-c", main, "serve", function, *options])
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        if not line.startswith("serving"):
            raise AspenError(f"the server did not start: {line!r}; its messages are above")
        yield Served(child, line.partition(" at ")[2].split(",")[0])
    finally:
        child.send_signal(signal.SIGCONT)  # a stopped process would not end
        child.terminate()
        child.stdout.close()
        try:
            child.wait(_END)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
