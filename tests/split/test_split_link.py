"""A device and a server: the same bits as in one process, nothing lost, and no peer harms another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from aspen_jax import InputError, aspen
from aspen_jax.errors import LinkError
from aspen_jax.split import ScanStep, cut, num_cuts
from benchmarks.split import bed
from tests.content import generator
from tests.split.split_functions import net, net_args

grpc = pytest.importorskip("grpc", reason="pip install 'aspen_jax[split]'")

from aspen_jax.split import (  # noqa: E402
    Client,
    Halves,
    Offer,
    PeerLimits,
    Tls,
    codec,
    handed_out,
    serve,
    split_pb2,
    split_pb2_grpc,
)

FILE = Path(__file__).parent / "split_functions.py"
ROOT = FILE.parents[1]
RANDOM = generator(__name__)
# To send more: ASPEN_HOSTILE_MESSAGES=100000 pytest -n 0 tests/split/test_split_link.py -k hostile
HOSTILE_MESSAGES = int(os.environ.get("ASPEN_HOSTILE_MESSAGES", "1000"))
LONG = 60  # seconds; only a hang lasts as long


def fresh(count=None):
    found = [RANDOM.normal(size=(16, 24)).astype(np.float32) for _ in range(count or 1)]
    return found if count else found[0]


def together(number, x, bits=None):
    """Both halves in this process."""
    head, tail = cut(net, number, net_args())
    crossing = head(x)
    return tail(*codec.unpack(codec.pack(crossing, bits), crossing))


def assert_same_bits(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@contextlib.contextmanager
def process(port=0):
    """`net` in another process, which ends in order unless a test kills it."""
    with bed.server(f"{FILE}:net", None, "--port", str(port)) as found:
        yield found
    assert found.process.returncode in (0, -signal.SIGKILL)


@pytest.fixture(scope="module")
def served():
    with process() as found:
        yield found


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("aspen-split")}


def test_results_are_those_of_the_halves_in_one_process(served):
    last = num_cuts(net, net_args()) - 1
    with Client(served[1], net, (net_args(),)) as client:
        assert client.num_cuts == last + 1
        for number in (0, *RANDOM.choice(range(1, last), 4, replace=False), last):
            client.configure(int(number))
            x = fresh()
            assert_same_bits(client(x), together(int(number), x))
        for bits in (1, 4, 16):
            client.configure(3, bits)
            x = fresh()
            assert_same_bits(client(x), together(3, x, bits))
        sent = [record.sent_bytes for record in client.records]
        assert sent[-4] == 0, "the last cut needs no server"
        assert 0 < sent[-3] < sent[-2] < sent[-1]


def test_many_calls_from_two_threads_keep_their_order(served):
    with Client(served[1], net, (net_args(),), cut=5, depth=4) as client:
        found = {}

        def call(name, inputs):
            found[name] = list(client.map(iter(inputs)))

        inputs = {name: fresh(30) for name in ("one", "two")}
        callers = [threading.Thread(target=call, args=item) for item in inputs.items()]
        for caller in callers:
            caller.start()
        for number in (0, 9, 5):  # calls on their way keep their cut
            client.configure(number)
            time.sleep(0.01)
        for caller in callers:
            caller.join(LONG)
        head, tail = cut(net, 5, net_args())
        for name, xs in inputs.items():
            for x, result in zip(xs, found[name], strict=True):
                np.testing.assert_allclose(result["y"], tail(*head(x))["y"], rtol=1e-4, atol=1e-5)
        assert len(client.records) == 60


def test_an_error_of_one_call_is_its_own(served):
    with Client(served[1], net, (net_args(),), cut=4) as client:
        x = fresh()
        futures = [client.submit(x), client.submit(np.ones((2, 3), np.float32)), client.submit(x)]
        with pytest.raises(InputError, match=r"not float32\[2,3\]"):
            futures[1].result(LONG)
        assert_same_bits(futures[0].result(LONG), futures[2].result(LONG))


def test_a_lost_server_ends_all_calls_and_the_next_one_connects_anew():
    with process() as (child, address), Client(address, net, (net_args(),), cut=2) as client:
        x = fresh()
        expected = client(x)
        child.send_signal(signal.SIGSTOP)
        futures = [client.submit(x) for _ in range(5)]
        child.kill()
        for future in futures:
            with pytest.raises(LinkError, match="connects anew"):
                future.result(LONG)
        child.wait(LONG)
        with pytest.raises(LinkError, match="connects anew"):
            client(x)
        with process(port=int(address.rpartition(":")[2])):
            assert_same_bits(client(x), expected)


def test_a_silent_server_is_given_up(served):
    child, address = served
    halves = Halves(net, (net_args(),))
    with Client(address, halves, cut=2, deadline=LONG) as client:
        x = fresh()
        expected = client(x)
        with Client(address, halves, cut=2, deadline=0.5) as hasty:
            child.send_signal(signal.SIGSTOP)
            with pytest.raises(LinkError, match=r"no answer for 0\.5 s") as caught:
                hasty(x)
            assert caught.value.reason == "LATE"
            child.send_signal(signal.SIGCONT)
        assert_same_bits(client(x), expected)


def test_a_server_that_ends_idle_streams_is_not_noticed():
    limits = PeerLimits(seconds=0.2)
    with (
        serve({"net": (net, (net_args(),))}, limits=limits) as server,
        Client(server.address, net, (net_args(),), cut=2) as client,
    ):
        for pause in (0, 0.15, 0.2, 0.21, 0.5):
            time.sleep(pause)
            x = fresh()
            assert_same_bits(client(x), together(2, x))


def test_a_client_without_the_model_gets_its_half():
    offer = Offer(net, (net_args(),), cuts=(2, 6), hands_out_heads=True)
    with serve({"net": offer, "kept": (net, (net_args(),))}) as server:
        with Client(server.address, "net", cut=6) as client:
            x = fresh()
            assert_same_bits(client(x), together(6, x))
            client.configure(2, 8)
            assert_same_bits(client(x), together(2, x, 8))
            client.configure(3)
            with pytest.raises(LinkError, match="does not hand out"):
                client(x)
        with pytest.raises(LinkError, match="no function of this name"):
            Client(server.address, "nothing")
        with Client(server.address, "kept") as client, pytest.raises(LinkError, match="does not hand out"):
            client(x)


def test_nothing_is_left_behind():
    assert not threads()
    server = serve({"net": (net, (net_args(),))})
    client = Client(server.address, net, (net_args(),), cut=2)
    client(fresh())
    assert threads()
    waiting = [client.submit(fresh()) for _ in range(8)]
    client.close()
    client.close()
    for future in waiting:
        with contextlib.suppress(LinkError):
            future.result(LONG)
    with pytest.raises(LinkError, match="closed"):
        client.submit(fresh())
    server.stop()
    server.stop()
    deadline = time.monotonic() + LONG
    while threads() and time.monotonic() < deadline:  # gRPC's own thread lets go a moment later
        time.sleep(0.01)
    assert not threads()


# --- Peers that nobody trusts ---


def hostile(halves):
    """A serialised request that is wrong in some way, or right."""
    kind = RANDOM.integers(9)
    number = int(RANDOM.integers(halves.num_cuts))
    arrays = [RANDOM.normal(size=item.shape).astype(item.dtype) for item in halves.crossing(number)]
    tensors = codec.pack(arrays, RANDOM.choice([None, 4]), RANDOM.choice(["none", "lz4", "shuffle-lz4"]))
    request = split_pb2.Request(id=int(RANDOM.integers(2**63)), model=halves.fingerprint, cut=number, tensors=tensors)
    if kind == 0:
        request.model = RANDOM.bytes(int(RANDOM.integers(64)))
    elif kind == 1:
        request.cut = int(RANDOM.integers(2**32))
    elif kind == 2:
        request.tensors = tensors[: int(RANDOM.integers(len(tensors)))]
    elif kind == 3:
        request.tensors = tensors + RANDOM.bytes(int(RANDOM.integers(1, 50)))
    elif kind == 4:
        request.tensors = RANDOM.bytes(int(RANDOM.integers(200)))
    message = bytearray(request.SerializeToString())
    if kind in (5, 6):
        for place in RANDOM.integers(min(len(message), 120 if kind == 5 else len(message)), size=RANDOM.integers(1, 6)):
            message[place] ^= 1 << int(RANDOM.integers(8))
    elif kind == 7:
        message = bytearray(RANDOM.bytes(int(RANDOM.integers(300))))
    return bytes(message)


def resident(child):
    """Bytes and threads of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024, int(status["Threads"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_hostile_messages_harm_nobody(served):
    child, address = served
    halves = Halves(net, (net_args(),))
    with Client(address, net, (net_args(),), cut=5) as client, grpc.insecure_channel(address) as channel:
        run = channel.stream_stream("/aspen_jax.split.Split/Run")
        x = fresh()
        expected = client(x)
        for number in range(halves.num_cuts):  # compiles what hostile peers may ask for
            client.configure(number)
            client(x)
        before = resident(child)
        answers = refusals = sent = 0
        statuses = []
        while sent < HOSTILE_MESSAGES:
            messages = [hostile(halves) for _ in range(20)]
            sent += len(messages)
            try:
                for answer in map(split_pb2.Answer.FromString, run(iter(messages), timeout=LONG)):
                    answers += answer.HasField("tensors")
                    refusals += answer.HasField("refusal")
            except grpc.RpcError as error:  # what is no message at all ends its stream
                statuses.append(error.code())
        assert min(answers, refusals, len(statuses)) > 0
        assert set(statuses) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
        client.configure(5)
        assert_same_bits(client(x), expected)
        after = resident(child)
        assert after[0] < before[0] + 32e6
        assert after[1] <= before[1] + 4


def test_hostile_bytes_at_the_port_harm_nobody(served):
    address = served[1]
    host, _, port = address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with Client(address, net, (net_args(),), cut=5) as client:
        x = fresh()
        expected = client(x)
        left_open = []
        for number in range(60):
            peer = socket.create_connection((host, int(port)), timeout=LONG)
            with contextlib.suppress(OSError):  # it may hang up at once
                peer.sendall((b"", preface, preface + b"\0\0\0\4\0\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n")[number % 4])
                peer.sendall(RANDOM.bytes(int(RANDOM.integers(500))))
            if number % 3:
                peer.close()
            else:
                left_open.append(peer)  # half a message
        assert_same_bits(client(x), expected)
        for peer in left_open:
            peer.close()
        assert_same_bits(client(x), expected)


def test_a_peer_that_reads_no_answers_holds_nothing_up():
    x = RANDOM.normal(size=(64, 1024)).astype(np.float32)
    halves = Halves(jax.numpy.negative, (x,))
    with serve({"negative": (jax.numpy.negative, (x,))}, limits=PeerLimits(seconds=0.5)) as server:
        request = split_pb2.Request(model=halves.fingerprint, cut=0, tensors=codec.pack([x])).SerializeToString()
        with grpc.insecure_channel(server.address) as channel, Client(server.address, halves) as client:
            answers = channel.stream_stream("/aspen_jax.split.Split/Run")(request for _ in range(400))
            streams = server._servicer._streams
            deadline = time.monotonic() + LONG
            while not streams.total() and time.monotonic() < deadline:
                time.sleep(0.01)
            while streams.total() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not streams.total()
            answers.cancel()
            assert_same_bits(client(x), jax.numpy.negative(x))


def test_limits_refuse_what_is_too_much():
    x = fresh()
    args = (net_args(),)
    with (
        serve({"net": (net, args)}, limits=PeerLimits(streams_of_a_host=1, held_bytes=10)) as server,
        Client(server.address, net, args, cut=2) as client,
        Client(server.address, net, args, cut=2) as second,
    ):
        with pytest.raises(LinkError, match="holds as many bytes") as caught:
            client(x)
        assert caught.value.reason == "BUSY"
        with pytest.raises(LinkError, match="too many streams") as caught:
            second(x)
        assert caught.value.reason == "RESOURCE_EXHAUSTED"
        client.close()
        deadline = time.monotonic() + LONG
        while caught.value.reason == "RESOURCE_EXHAUSTED" and time.monotonic() < deadline:
            with pytest.raises(LinkError) as caught:
                second(x)
        assert caught.value.reason == "BUSY", "the first client's stream is free again"
    with serve({"net": Offer(net, args, cuts=(2,))}) as server, Client(server.address, net, args, cut=3) as client:
        with pytest.raises(LinkError, match="cut 3 is not offered"):
            client(x)
        client.configure(2)
        assert_same_bits(client(x), together(2, x))
        with grpc.insecure_channel(server.address) as channel:
            run = channel.stream_stream("/aspen_jax.split.Split/Run")
            with pytest.raises(grpc.RpcError, match="larger than max"):
                list(run(iter([bytes(10**6)]), timeout=LONG))


def test_keys_are_no_results():
    with pytest.raises(InputError, match="key_data"):
        Halves(lambda x: jax.random.key(0), (np.ones(3),))


def test_halves_are_made_once_unless_their_weights_are_large():
    def large(x):
        x = x @ weights
        for _ in range(9):
            x = jax.numpy.sin(x)
        return x

    weights = np.zeros((3200, 3200), np.float32)
    for function, argument, is_kept in ((net, net_args(), True), (large, jax.ShapeDtypeStruct((1, 3200), np.float32), False)):
        halves = Halves(function, (argument,))
        assert halves.num_cuts > 10
        tails = [halves.tail(number) for number in range(halves.num_cuts)]
        assert (halves.tail(0) is tails[0]) == is_kept


def test_another_function_is_refused():
    with serve({"net": (net, (net_args(),))}) as server:
        for other, args in ((lambda x: net(x)["y"], (net_args(),)), (net, (jax.ShapeDtypeStruct((8, 24), np.float32),))):
            with Client(server.address, other, args) as client, pytest.raises(LinkError, match="fingerprint") as caught:
                client(np.zeros(args[0].shape, np.float32))
            assert caught.value.reason == "MODEL"


def test_weights_and_code_make_the_fingerprint():
    def function(weights, scale):
        return lambda x: x @ weights * scale

    weights = RANDOM.normal(size=(3, 3)).astype(np.float32)
    x = (np.ones((2, 3), np.float32),)
    same, again = (Halves(function(weights.copy(), 2), x).fingerprint for _ in range(2))
    changed = weights.copy()
    changed[1, 2] = np.nextafter(changed[1, 2], 9)
    others = {Halves(function(*item), x).fingerprint for item in ((changed, 2), (weights, 3), (weights.astype(np.float16), 2))}
    assert same == again
    assert len(others | {same}) == 4


def test_tokens():
    with serve({"net": (net, (net_args(),))}, token="right") as server:
        x = fresh()
        with Client(server.address, net, (net_args(),), cut=2, token="right") as client:
            expected = client(x)
            for token in (None, "righ", "rightt", "wrong"):
                with Client(server.address, net, (net_args(),), cut=2, token=token) as other:
                    with pytest.raises(LinkError, match="refused the token") as caught:
                        other(x)
                    assert caught.value.reason == "UNAUTHENTICATED"
                with pytest.raises(LinkError, match="refused the token"):
                    Client(server.address, "net", token=token)
            assert_same_bits(client(x), expected)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A root, and a server's and a client's certificate signed by it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*words):
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True, timeout=LONG)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    run(*new, "-x509", "-subj", "/CN=root", "-keyout", "root.key", "-out", "root.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        run(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("x509", "-req", "-in", f"{name}.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial", "-days", "2")
        run(*signed, "-extfile", "names", "-out", f"{name}.pem")
    return folder


def test_certificates(certificates):
    folder = certificates
    server_side = Tls.load(folder / "server.pem", folder / "server.key")
    x = fresh()
    with serve({"net": (net, (net_args(),))}, tls=server_side, token="right") as server:
        with Client(server.address, net, (net_args(),), cut=2, tls=Tls.load(roots=folder / "root.pem"), token="right") as client:
            assert_same_bits(client(x), together(2, x))
        for tls in (None, Tls()):  # plain text, and a root that did not sign
            other = Client(server.address, net, (net_args(),), cut=2, tls=tls, token="right")
            with other, pytest.raises(LinkError, match="is lost or not there"):
                other(x)
    mutual = Tls.load(folder / "server.pem", folder / "server.key", folder / "root.pem")
    with serve({"net": (net, (net_args(),))}, tls=mutual) as server:
        known = Tls.load(folder / "client.pem", folder / "client.key", folder / "root.pem")
        with Client(server.address, net, (net_args(),), cut=2, tls=known) as client:
            assert_same_bits(client(x), together(2, x))
        unknown = Client(server.address, net, (net_args(),), cut=2, tls=Tls.load(roots=folder / "root.pem"))
        with unknown, pytest.raises(LinkError, match="is lost or not there"):
            unknown(x)


# --- Servers that nobody trusts ---


@contextlib.contextmanager
def pretending(answer=None, description=None):
    """A server that says what it is told to."""

    class Pretender(split_pb2_grpc.SplitServicer):
        def Run(self, request_iterator, context):
            for request in request_iterator:
                yield answer(request)

        def Describe(self, request, context):
            return description(request)

    server = grpc.server(ThreadPoolExecutor(4))
    split_pb2_grpc.add_SplitServicer_to_server(Pretender(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            {"refusal": {"reason": 99, "message": "\x1b[2J\x07\u202egone\n"}},
            r"refused \(UNKNOWN\): \\x1b\[2J\\x07\\u202egone\\n$",
        ),
        ({"refusal": {"reason": 5, "message": "x" * 900}}, r"refused \(FAILED\): x{500}\.\.\.$"),
        ({"tensors": b"\x1b[2J"}, "does not fit"),
        ({}, r"refused \(UNKNOWN\)"),
        ({"tensors": b"", "server_ns": 2**64 - 1}, "does not fit"),
    ],
)
def test_what_a_server_answers_ends_the_call_in_printable_text(answer, message):
    def say(request):
        return split_pb2.Answer(id=request.id, **answer)

    with pretending(say) as address, Client(address, net, (net_args(),), cut=2) as client:
        with pytest.raises(LinkError, match=message) as caught:
            client.submit(fresh()).result(LONG)
        assert str(caught.value).isprintable()


def test_texts_of_a_status_are_printable():
    def refuse(request):
        raise RuntimeError("\x1b]0;title\x07 refused")

    with pretending(description=refuse) as address, pytest.raises(LinkError, match="refused") as caught:
        Client(address, "net")
    assert str(caught.value).isprintable()


def described(offer_of=net, cut=2, args=None):
    """What an honest server says of a function, and of a head."""
    halves = Halves(offer_of, (net_args(),) if args is None else args)
    head = handed_out.exported_head(halves, cut)
    return split_pb2.Description(
        model=halves.fingerprint,
        cuts=halves.num_cuts,
        results=handed_out.exported_results(halves),
        head=head,
        sha256=hashlib.sha256(head).digest(),
    )


def test_rubbish_from_describe_is_refused():
    right = described()
    with pretending(description=lambda _: right) as address, Client(address, "net", cut=2) as client:
        assert len(client._halves.head(2)(fresh())) == len(cut(net, 2, net_args())[0](fresh()))
    wrong = [
        {field: junk} for field in ("model", "results") for junk in (b"", b"rubbish" * 9, right.results[:100], RANDOM.bytes(900))
    ]
    wrong += [{"cuts": 0}, {"model": b"", "cuts": 0, "results": b""}]
    for change in wrong:
        description = split_pb2.Description(**{"model": right.model, "cuts": 3, "results": right.results} | change)
        with pretending(description=lambda _, description=description: description) as address:
            with pytest.raises(LinkError, match=r"is none|cannot be run") as caught:
                Client(address, "net")
            assert str(caught.value).isprintable()


def test_rubbish_for_a_head_is_refused():
    right = described()
    for junk in (b"", b"\0" * 64, RANDOM.bytes(500), right.head[:200], right.head[:-64], right.results):

        def say(request, junk=junk):
            if not request.HasField("cut"):
                return right
            return split_pb2.Description(model=right.model, head=junk, sha256=hashlib.sha256(junk).digest())

        with pretending(description=say) as address, Client(address, "net", cut=2) as client:
            if junk == right.results:
                with pytest.raises(InputError, match="takes arguments of the structure"):
                    client(fresh())
                continue
            with pytest.raises(LinkError, match="the head of cut 2 cannot be run") as caught:
                client(fresh())
            assert str(caught.value).isprintable()


def test_a_head_calls_what_is_listed_alone():
    def python(x):
        return jax.pure_callback(np.sin, x, x)

    def strange(x):
        return jax.ffi.ffi_call("nobodys\x1bcall", x)(x)

    struct = net_args()
    with pytest.raises(LinkError, match=r"calls 'xla\w*python\w*', which no head may call"):
        handed_out.check_calls(jax.jit(lambda x: jax.lax.map(python, x)).lower(struct))
    checks = [export.DisabledSafetyCheck.custom_call("nobodys\x1bcall")]
    head = bytes(export.export(jax.jit(lambda x: (strange(x),)), disabled_checks=checks)(struct).serialize())
    right = described()
    offered = split_pb2.Description(model=right.model, head=head, sha256=hashlib.sha256(head).digest())
    with (
        pretending(description=lambda request: offered if request.HasField("cut") else right) as address,
        Client(address, "net", cut=2) as client,
        pytest.raises(LinkError, match="no head may call") as caught,
    ):
        client(fresh())
    assert str(caught.value).isprintable()


def test_a_head_with_a_callback_is_not_handed_out():
    offer = Offer(lambda x: jax.pure_callback(np.sin, x, x) + 1, (net_args(),), hands_out_heads=True)
    with serve({"net": offer}) as server, Client(server.address, "net", cut=1) as client:
        with pytest.raises(LinkError, match="cannot be handed out") as caught:
            client(fresh())
        assert caught.value.reason == "FAILED_PRECONDITION"
        client.configure(0)
        np.testing.assert_allclose(client(np.ones((16, 24), np.float32)), np.sin(np.ones((16, 24))) + 1, rtol=1e-6)


HEADS = {
    "tiles": lambda x: jax.nn.relu(x @ x + 1) @ x,
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(16)),
    "qr": lambda x: jnp.linalg.qr(x)[0],
    "svd": lambda x: jnp.linalg.svd(x)[1],
    "eigh": lambda x: jnp.linalg.eigh(x + x.T)[0],
    "eig": lambda x: jnp.abs(jnp.linalg.eigvals(x)).sum(),
    "solve": lambda x: jnp.linalg.solve(x + 9 * jnp.eye(16), x),
    "triangular": lambda x: jax.scipy.linalg.solve_triangular(x + 9 * jnp.eye(16), x),
    "expm": jax.scipy.linalg.expm,
    "schur": lambda x: jax.scipy.linalg.schur(x)[0],
    "hessenberg": lambda x: jax.scipy.linalg.hessenberg(x),
    "tridiagonal": lambda x: jax.lax.linalg.tridiagonal_solve(x[0], x[1] + 9, x[2], x),
    "fft": lambda x: jnp.abs(jnp.fft.fft2(x)),
    "sort": lambda x: jnp.sort(x, 1),
    "top_k": lambda x: jax.lax.top_k(x, 3)[0],
    "approx_top_k": lambda x: jax.lax.approx_max_k(x, 3)[0],
    "random": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "rbg": lambda x: x + jax.random.normal(jax.random.key(1, impl="rbg"), x.shape),
    "erf_inv": lambda x: jax.scipy.special.erfinv(jnp.tanh(x)) + jax.scipy.special.gammaln(jnp.abs(x) + 1),
    "loop": lambda x: jax.lax.while_loop(lambda y: jnp.abs(y).max() < 1e3, lambda y: y * 2, x),
    "cumsum": lambda x: jnp.cumsum(x, 0) + jax.scipy.special.bessel_jn(x, v=2)[0],
    "reduce": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "SAME"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_all_kinds_are_handed_out(name):
    x = RANDOM.normal(size=(16, 16)).astype(np.float32)
    halves = Halves(HEADS[name], (x,))
    last = halves.num_cuts - 1
    offer = described(HEADS[name], last, (x,))
    received = handed_out.HandedOut("net", lambda _: offer)
    for ours, theirs in zip(received.head(last)(x), jax.tree.leaves(HEADS[name](x)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_weights_and_static_arguments_are_in_a_head_that_is_handed_out():
    @aspen(weights="weights")
    def fun(weights, x, mode, *, scale):
        y = jnp.tanh(x @ weights["a"]) * scale
        return y @ weights["b"] if mode == "two" else y

    weights = {name: RANDOM.normal(size=(24, 24)).astype(np.float32) for name in "ab"}
    offer = Offer(fun, (weights, net_args(), "two"), hands_out_heads=True, kwargs={"scale": 0.5})
    with serve({"net": offer}) as server, Client(server.address, "net", cut=2) as client:
        x = fresh()
        np.testing.assert_allclose(client(x, scale=0.5), fun(weights, x, "two", scale=0.5), rtol=1e-4, atol=1e-4)
        with pytest.raises(InputError, match="takes arguments of the structure"):
            client(weights, x, scale=0.5)


def test_other_weights_end_a_call_and_keywords_work():
    @aspen(weights="weights")
    def fun(x, *, weights, scale):
        return jnp.tanh(x @ weights["a"]) @ weights["b"] * scale

    old, new = ({name: RANDOM.normal(size=(24, 24)).astype(np.float32) for name in "ab"} for _ in range(2))
    kwargs = {"weights": old, "scale": 0.5}
    with (
        serve({"net": Offer(fun, (net_args(),), kwargs=kwargs)}) as server,
        Client(server.address, fun, (net_args(),), kwargs, cut=2) as client,
    ):
        x = fresh()
        for number in (2, 0, client.num_cuts - 1):
            client.configure(number)
            np.testing.assert_allclose(client(x, **kwargs), fun(x, **kwargs), rtol=1e-4, atol=1e-4)
        client.configure(2)
        with pytest.raises(InputError, match=r"the weights weights\.b are not those"):
            client(x, weights=new, scale=0.5)


def test_a_function_is_traced_once_and_its_constants_do_not_change():
    weights = np.eye(24, dtype=np.float32)
    halves = Halves(lambda x: jnp.tanh(x @ weights) @ weights, (net_args(),))
    x, before = fresh(), Halves(lambda x: jnp.tanh(x @ weights) @ weights, (net_args(),)).fingerprint
    weights[:] = 0
    assert halves.fingerprint == before
    np.testing.assert_allclose(halves.tail(1)(*halves.head(1)(x)), np.tanh(x), rtol=1e-5, atol=1e-5)


# --- What is refused before anything is sent ---


def test_what_cannot_be_served_is_refused(tmp_path):
    table = {"net": (net, (net_args(),))}
    with pytest.raises(InputError, match="is not this machine"):
        serve(table, host="0.0.0.0")
    for token in ("", " ", "two words", "line\n", "\u00e9"):
        with pytest.raises(InputError, match="printable ASCII"):
            serve(table, token=token)
    with pytest.raises(InputError, match="needs a certificate"):
        serve(table, tls=Tls())
    with pytest.raises(InputError, match="there is no cut 1000"):
        serve({"net": Offer(net, (net_args(),), cuts=(1000,))})
    for cuts, message in (
        (((2, 5),), "between two operations"),
        ((True,), "no cut True"),
        ((1.0,), "no cut 1.0"),
        (3, "is no sequence"),
    ):
        with pytest.raises(InputError, match=message):
            serve({"net": Offer(net, (net_args(),), cuts=cuts)})
    for port in (-1, 65536, 70000, True, "80", 80.0):
        with pytest.raises(InputError, match="there is no port"):
            serve(table, port=port)
    with pytest.raises(InputError, match="cannot be called with these arguments"):
        serve({"net": (net, ())})
    with pytest.raises(InputError, match="cannot be read"):
        Tls.load(roots=tmp_path / "nothing.pem")
    with serve(table) as server, pytest.raises(InputError, match="nothing can listen"):
        serve(table, port=int(server.address.rpartition(":")[2]))
    assert not threads()


@pytest.mark.parametrize(
    ("address", "options", "message"),
    [
        ("here", {}, "is no address"),
        ("127.0.0.1:", {}, "is no address"),
        ("192.0.2.1:80", {}, "is not this machine"),
        ("127.0.0.1:0", {}, "no port 0"),
        ("127.0.0.1:65536", {}, "no port 65536"),
        ("127.0.0.1:\u0663", {}, "is no address"),
        ("127.0.0.1:1", {"cut": 1000}, "there is no cut 1000"),
        ("127.0.0.1:1", {"cut": (2, 5)}, r"once, between two operations, not at \(2, 5\)"),
        ("127.0.0.1:1", {"cut": ScanStep(0, 1)}, "once, between two operations, not at ScanStep"),
        ("127.0.0.1:1", {"cut": True}, "there is no cut True"),
        ("127.0.0.1:1", {"cut": 1.0}, "there is no cut 1.0"),
        ("127.0.0.1:1", {"cut": "1"}, "there is no cut '1'"),
        ("127.0.0.1:1", {"kwargs": {"y": 1}}, "cannot be called with these arguments"),
        ("127.0.0.1:1", {"cut": -1}, "there is no cut -1"),
        ("127.0.0.1:1", {"bits": 17}, "17"),
        ("127.0.0.1:1", {"token": ""}, "printable ASCII"),
        ("127.0.0.1:1", {"deadline": 0}, "must be positive"),
        ("127.0.0.1:1", {"depth": 0}, "must be positive"),
    ],
)
def test_what_a_client_cannot_do_is_refused(address, options, message):
    with pytest.raises(InputError, match=message):
        Client(address, net, (net_args(),), **options)
    deadline = time.monotonic() + LONG
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_generated_code_is_that_of_the_proto(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc", reason="pip install grpcio-tools to compare")
    from google.protobuf import descriptor_pb2

    out = tmp_path / "descriptors"
    name = "aspen_jax/split/split.proto"
    assert protoc.main(["protoc", f"-I{ROOT}", f"--descriptor_set_out={out}", str(ROOT / name)]) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    here = descriptor_pb2.FileDescriptorProto()
    split_pb2.DESCRIPTOR.CopyToProto(here)
    file.ClearField("source_code_info")
    for message in file.message_type:  # names for JSON, which Python leaves out
        for field in message.field:
            field.ClearField("json_name")
    for message in here.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert file == here


def test_results_that_are_no_arrays_need_no_link():
    def function(x):
        return {"array": jnp.tanh(x) * 2, "name": "two"}

    x = fresh()
    server = serve({"function": (function, (x,))})
    try:
        with Client(server.address, function, (x,)) as client:
            for number in range(client.num_cuts):
                client.configure(number)
                got = client(x)
                assert got["name"] == "two"
                np.testing.assert_allclose(got["array"], np.tanh(x) * 2, rtol=1e-5)
        with pytest.raises(LinkError, match="also returns what is no array"):
            Client(server.address, "function")
    finally:
        server.stop(0)
