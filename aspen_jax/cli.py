"""The command `aspen`; each subcommand is a function, of which tyro makes the options and the help."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from aspen_jax.errors import AspenError, InputError
from aspen_jax.files import SMALL, read_text

Function = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODULE:FUNCTION")]
Shapes = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="shape", metavar="DTYPE[DIMS]")]
Maker = Annotated[str | None, tyro.conf.arg(metavar="[MODULE:]CALLABLE")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]

_DESCRIPTION = "aspen_jax runs JAX functions as one dataflow graph of tiles."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and give its exit status: 0, 1 where results differ, 2 where the command cannot do what is asked.

    Args:
        argv: arguments; those of the process if None.
    """
    commands = {"demo": demo, "info": info, "explain": explain, "bench": bench, "tune": tune, "trace": trace, "lab": lab}
    commands |= {"serve": serve, "split": split}
    try:
        return tyro.extras.subcommand_cli_from_dict(commands, prog="aspen", description=_DESCRIPTION, args=argv)
    except AspenError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return 130


def _refuse(message: str) -> int:
    """Says why the command is not done. It may quote a file, so what a terminal would obey is escaped."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in message)
    print(f"aspen: {shown}", file=sys.stderr)
    return 2


def demo(rounds: int = 15, workers: int | None = None) -> int:
    """Run two Keras models on a photograph and a network trained on the spot, with aspen and without; takes a minute or two.

    Args:
        rounds: how often each model is timed.
        workers: cores for both sides; all usable ones by default.
    """
    from aspen_jax import demo as demonstration
    from aspen_jax.report.cores import share_cores

    share_cores(workers)
    return demonstration.run(rounds)


def info() -> int:
    """Say what is installed, on what machine, and what is chosen: versions, cores, workers, kernels."""
    from aspen_jax import runtime
    from aspen_jax.report.machine import machine

    rows = [(name, _text(value)) for name, value in machine().items()]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name.ljust(width)}  {text}" for name, text in rows))
    if left_out := runtime.targets_left_out():
        print(f"\nThis processor also runs {_text(left_out)}. To have kernels for all targets, run in a checkout of aspen_jax:")
        print(f"    {runtime.HOW_TO_HAVE_ALL_TARGETS}")
    return 0


def explain(function: Function, /, shape: Shapes = (), args: Maker = None, passes: bool = False) -> int:
    """Show what becomes of your function: the ops that run as tiles, and what is left to XLA and why.

    The arguments come from --shape, --args, or a callable FUNCTION_args beside the function.

    Args:
        function: what to explain; a module of this directory or an installed one, or path/to/file.py:FUNCTION.
        shape: a positional argument, such as f32[1,224,224,3].
        args: a callable that returns the arguments: a tuple, a dict of keywords, or a single argument.
        passes: print the program after each pass that changed it, what that saved and how long it took, instead.
    """
    from aspen_jax.api.user_function import blaming

    decorated, positional, keywords = _decorated(function, shape, args)
    with blaming(f"tracing {function.rpartition(':')[2]}"):
        explanation = decorated.explain(*positional, **keywords)
    print(explanation.passes if passes else explanation)
    return 0


def bench(
    function: Function,
    /,
    shape: Shapes = (),
    args: Maker = None,
    rounds: int = 20,
    tolerance: float = 1e-4,
    workers: int | None = None,
    json: File = None,
) -> int:
    """Time your function with aspen against jax.jit, in turns, after checking that the results are the same.

    The arguments come from --shape, --args, or a callable FUNCTION_args beside the function. Both sides get as many cores.

    Args:
        function: what to time; a module of this directory or an installed one, or path/to/file.py:FUNCTION.
        shape: a positional argument, such as f32[1,224,224,3], filled with seeded random numbers.
        args: a callable that returns the arguments: a tuple, a dict of keywords, or a single argument.
        rounds: how often each side is timed.
        tolerance: largest difference allowed, as a share of the largest output.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
    """
    from aspen_jax.api.user_function import example_arguments, filled, load
    from aspen_jax.report.comparison import compare
    from aspen_jax.report.cores import share_cores
    from aspen_jax.report.record import write_record

    share_cores(workers)  # before the user's module may make JAX start its threads
    module, found = load(function)
    name = function.rpartition(":")[2]
    positional, keywords = filled(example_arguments(module, name, args, shape))
    result = compare(found, positional, keywords, name=name, rounds=rounds, tolerance=tolerance)
    print(result)
    if json is not None:
        write_record(json, result.to_json())
    return 0 if result.agrees else 1


def tune(function: Function, /, shape: Shapes = (), args: Maker = None, workers: int | None = None) -> int:
    """Search for the tiles and algorithms that are fastest for your function on this machine, and keep them on disk.

    The arguments come from --shape, --args, or a callable FUNCTION_args beside the function. Leave the machine alone meanwhile.

    Args:
        function: what to tune; a module of this directory or an installed one, or path/to/file.py:FUNCTION.
        shape: a positional argument, such as f32[1,224,224,3].
        args: a callable that returns the arguments: a tuple, a dict of keywords, or a single argument.
        workers: cores to tune for; all usable ones by default.
    """
    from aspen_jax.api.user_function import blaming
    from aspen_jax.report.cores import share_cores

    share_cores(workers)
    decorated, positional, keywords = _decorated(function, shape, args)
    with blaming(f"tracing {function.rpartition(':')[2]}"):
        tuning = decorated.tune(*positional, **keywords)
    print(tuning)
    return 0


def trace(
    function: Function,
    /,
    shape: Shapes = (),
    args: Maker = None,
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("run.perfetto-trace"),
    page: File = None,
    picture: File = None,
    rounds: int = 20,
    workers: int | None = None,
) -> int:
    """Run your function's graph of tiles several times, and write when and where each tile of the fastest run ran.

    The arguments come from --shape, --args, or a callable FUNCTION_args beside the function. All of the function must be tiled.

    Args:
        function: what to run; a module of this directory or an installed one, or path/to/file.py:FUNCTION.
        shape: a positional argument, such as f32[1,224,224,3], filled with seeded random numbers.
        args: a callable that returns the arguments: a tuple, a dict of keywords, or a single argument.
        output: the file to write, for https://ui.perfetto.dev.
        page: a file for the same run as a page of HTML.
        picture: a file for a picture of the graph's ops, such as graph.svg; Graphviz draws it.
        rounds: how often the graph is run.
        workers: cores to use; all usable ones by default.
    """
    from aspen_jax import runtime
    from aspen_jax.api.user_function import blaming, filled
    from aspen_jax.report import graph_picture
    from aspen_jax.report import page as pages
    from aspen_jax.report import trace as traces
    from aspen_jax.report.cores import share_cores
    from aspen_jax.report.labels import Labels
    from aspen_jax.report.record import write_file
    from aspen_jax.report.timeline import Timeline

    share_cores(workers)  # before the user's module may make JAX start its threads
    decorated, positional, keywords = _decorated(function, shape, args)
    positional, keywords = filled((positional, keywords))
    name = function.rpartition(":")[2]
    with blaming(f"tracing {name}"):
        graph = decorated.graph(*positional, **keywords)
    timeline = traces.fastest(graph, decorated.graph_inputs(*positional, **keywords), rounds)
    by_caller = bool((timeline[:, 0] < 0).all())  # a small graph, for which no worker was woken
    lane_names = [] if by_caller else [f"worker {number}" for number in range(runtime.num_workers())]
    run = Timeline(graph, timeline, lane_names)
    labels = Labels(graph)
    write_file(output, traces.encoded(labels, run))
    if page is not None:
        write_file(page, pages.page(name, labels, run, decorated.explain(*positional, **keywords)).encode())
    if picture is not None:
        graph_picture.draw(picture, graph)
    print(f"{name}, the fastest of {rounds} runs:\n{run}")
    print(f"open {output} at https://ui.perfetto.dev, which reads it in your browser and sends it nowhere")
    return 0


def lab(
    graph: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GRAPH")],
    /,
    policy: tuple[str, ...] = ("ReadyPool",),
    workers: int | None = None,
    machine: File = None,
    costs: File = None,
    picture: File = None,
    output: File = None,
) -> int:
    """Simulate a saved graph of tiles under scheduling policies, and compare them.

    Args:
        graph: a file that TileGraph.save wrote.
        policy: names of policies in aspen_jax.schedule, such as ReadyPool, Heft or Dmda.
        workers: a machine of so many equal cores; the workers of this machine by default.
        machine: a file that Machine.save wrote, instead of workers.
        costs: a file that Costs.save wrote; the graph's own estimates by default, on every resource.
        picture: where to draw who runs what when, a PNG, PDF or SVG file.
        output: where to write the first policy's run for https://ui.perfetto.dev.
    """
    import aspen_jax.schedule as sched
    from aspen_jax import TileGraph
    from aspen_jax.schedule.costs import estimated

    if machine is not None and workers is not None:
        raise InputError("take --machine or --workers: a machine file says itself how many there are")
    kinds = {name: kind for name, kind in vars(sched).items() if isinstance(kind, type) and issubclass(kind, sched.Policy)}
    kinds = {name: kind for name, kind in kinds.items() if name not in ("Policy", "Static", "Compiled", "NativePolicy")}
    if unknown := set(policy) - set(kinds):
        raise InputError(f"there is no policy {min(unknown)!r}; there are {', '.join(sorted(kinds))}")
    loaded = TileGraph.load(graph)
    resources = sched.Machine.here() if workers is None else sched.Machine([sched.Cpu(workers)])
    if machine is not None:
        resources = sched.Machine.load(machine)
    known = estimated(loaded, resources) if costs is None else sched.Costs.load(costs, loaded, resources)
    schedules = sched.compare([sched.simulate(loaded, resources, known, kinds[name]()) for name in policy])
    print(f"{loaded.num_tiles} tiles on {', '.join(f'{item.lanes} x {item.name}' for item in resources.resources)}")
    print(schedules)
    if picture is not None:
        schedules.picture(picture)
    if output is not None:
        schedules[0].trace(output)
    return 0


def serve(
    function: Function,
    /,
    shape: Shapes = (),
    args: Maker = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token_file: File = None,
    tls_cert: File = None,
    tls_key: File = None,
    tls_roots: File = None,
    plain_text: bool = False,
    cuts: tuple[int, ...] = (),
    hand_out_heads: bool = False,
    threads: int = 1,
    workers: int | None = None,
) -> int:
    """Run tails of your function for devices that run its heads, until interrupted; `aspen split` is the other side.

    The arguments come from --shape, --args, or a callable FUNCTION_args beside the function.

    Args:
        function: what to serve; a module of this directory or an installed one, or path/to/file.py:FUNCTION.
        shape: a positional argument, such as f32[1,224,224,3].
        args: a callable that returns the arguments: a tuple, a dict of keywords, or a single argument.
        host: the address to listen at; others than this machine's own need TLS, or --plain-text.
        port: 0 takes a free one.
        token_file: a file with the token that clients must show.
        tls_cert: a file with the server's certificate, PEM.
        tls_key: a file with its private key, PEM.
        tls_roots: a file with certificates that must have signed those of clients, PEM.
        plain_text: let plain text leave this machine.
        cuts: cuts whose tails are run; all by default.
        hand_out_heads: give clients without the model the head of a cut, with the weights in it.
        threads: tails that run at once.
        workers: cores to use; all usable ones by default.
    """
    from aspen_jax import split as room
    from aspen_jax.report.cores import share_cores

    share_cores(workers)
    tls = None if tls_cert is tls_key is tls_roots is None else room.Tls.load(tls_cert, tls_key, tls_roots)
    found, positional, keywords = _decorated(function, shape, args)
    name = function.rpartition(":")[2]
    offer = room.Offer(found, positional, cuts or None, hand_out_heads, keywords)
    token = _token(token_file)
    with room.serve({name: offer}, host=host, port=port, token=token, tls=tls, plain_text=plain_text, threads=threads) as server:
        print(f"serving {name} at {server.address}, fingerprint {server.fingerprints[name].hex()[:16]}", flush=True)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaves `with`, which stops the server
        server.wait()
    return 0


def split(
    function: Function,
    /,
    shape: Shapes = (),
    args: Maker = None,
    server: str | None = None,
    cut: int = 0,
    bits: int | None = None,
    token_file: File = None,
    tls: bool = False,
    tls_roots: File = None,
    tls_cert: File = None,
    tls_key: File = None,
    plain_text: bool = False,
    rounds: int = 20,
    tolerance: float = 1e-4,
    workers: int | None = None,
) -> int:
    """Run the head of your function here and its tail on a server; without --server list the cuts and what crosses them.

    The arguments come from --shape, --args, or a callable FUNCTION_args beside the function.

    Args:
        function: what to split; a module of this directory or an installed one, or path/to/file.py:FUNCTION.
        shape: a positional argument, such as f32[1,224,224,3], filled with seeded random numbers.
        args: a callable that returns the arguments: a tuple, a dict of keywords, or a single argument.
        server: HOST:PORT of `aspen serve` with the same function.
        cut: 0 runs all of it on the server, the last cut all of it here.
        bits: of a float on the link, 1 to 16; all of them by default.
        token_file: a file with the token that the server wants.
        tls: encrypt, and trust the system's roots; --tls-roots does too, and trusts others.
        tls_roots: a file with the certificates that are trusted, PEM.
        tls_cert: a file with the client's certificate, if the server asks for one, PEM.
        tls_key: a file with its private key, PEM.
        plain_text: let plain text leave this machine.
        rounds: calls, one behind the other, and again as many at once.
        tolerance: largest difference allowed where all bits are sent, as a share of the largest output.
        workers: cores to use; all usable ones by default.
    """
    from aspen_jax import split as room
    from aspen_jax.api.user_function import filled
    from aspen_jax.report.cores import share_cores
    from aspen_jax.report.split_calls import cuts_table, split_calls

    share_cores(workers)
    found, positional, keywords = _decorated(function, shape, args)
    if server is None:
        print(cuts_table(found, positional, keywords))
        return 0
    is_encrypted = tls or not (tls_roots is tls_cert is tls_key is None)
    certificates = room.Tls.load(tls_cert, tls_key, tls_roots) if is_encrypted else None
    positional, keywords = filled((positional, keywords))
    token = _token(token_file)
    with room.Client(
        server, found, positional, keywords, cut=cut, bits=bits, token=token, tls=certificates, plain_text=plain_text
    ) as client:
        calls = split_calls(client, found, positional, keywords, rounds)
    print(calls)
    return 0 if bits is not None or calls.difference <= tolerance else 1


def _token(path: Path | None) -> str | None:
    """The token in a file, without white space around it."""
    try:
        return None if path is None else read_text(path, SMALL).strip()
    except (OSError, UnicodeError) as error:
        raise InputError(f"{str(path)!r} cannot be read: {error}; name a file with the token") from error


def _decorated(function: str, shape: Sequence[str], args: str | None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function named on the command line, decorated, and arguments for it."""
    from aspen_jax import aspen
    from aspen_jax.api.bound import BoundAspenFunction
    from aspen_jax.api.function import AspenFunction
    from aspen_jax.api.user_function import example_arguments, load

    module, found = load(function)
    positional, keywords = example_arguments(module, function.rpartition(":")[2], args, shape)
    return found if isinstance(found, AspenFunction | BoundAspenFunction) else aspen(found), positional, keywords


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
