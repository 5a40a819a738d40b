"""What is said of a trace of memory accesses: which misses are true sharing, which false, and where they come from."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from benchmarks import sharing
from benchmarks.__main__ import main
from benchmarks.coherence import simulate

TOOLS = {tool: shutil.which(tool) for tool in ("valgrind", "addr2line", "cmake", os.environ.get("CXX", "c++"))}
MARKER = 0x431380
LINE = 0x600000  # a cache line
WRITE, READ, OTHER_WRITE, ELSEWHERE = 0x401000, 0x401010, 0x401020, 0x401030  # instructions


def trace(*accesses: tuple[int, int, str, int], before: str = "", size: int = 4) -> list[str]:
    """The lines of one graph whose threads take turns: thread, instruction, kind of access and address of each."""
    body = "".join(
        f"--7--   SCHED[{thread}]:  acquired lock (VG_(vg_yield))\nI  {instruction:08x},3\n {kind} {address:08x},{size}\n"
        for thread, instruction, kind, address in accesses
    )
    store = f"I  00400000,6\n S {MARKER:08x},4\n"
    head = f"==7== Command: sharing\n{before}graph chain, 10 tiles, 2 runs, marker {MARKER:#x}\n"
    return (head + store + body + store + "I  00400000,6\n").splitlines(keepends=True)


def result(*accesses: tuple[int, int, str, int], **options) -> dict:
    (graph,) = simulate(trace(*accesses, **options))
    assert (graph.pop("graph"), graph.pop("tiles"), graph.pop("runs")) == ("chain", 10, 2)
    return graph


def test_a_byte_that_one_thread_writes_and_another_reads_is_true_sharing():
    turn = [(1, WRITE, "S", LINE), (2, READ, "L", LINE)]
    assert result(*turn * 3) == {"true": 2, "false": 0, "pairs": []}


def test_neighbours_in_a_line_are_false_sharing_of_who_writes_and_who_misses():
    turn = [(1, WRITE, "S", LINE), (2, READ, "L", LINE + 8)]
    pair = {"writer": WRITE, "victim": READ, "misses": 2, "lines": [LINE // 64]}
    # Thread 2 misses at its second, third and fourth turn, but the last time the line might still have been needed.
    assert result(*turn * 4) == {"true": 0, "false": 2, "pairs": [pair]}


def test_two_that_modify_neighbours_take_the_line_from_each_other():
    turn = [(1, WRITE, "M", LINE), (2, OTHER_WRITE, "M", LINE + 60)]
    first, second = result(*turn * 4)["pairs"]
    assert {first["writer"], second["writer"]} == {WRITE, OTHER_WRITE}
    assert first["writer"] == second["victim"]
    assert first["misses"] + second["misses"] == 5


def test_neighbouring_lines_are_not_shared():
    turn = [(1, WRITE, "S", LINE), (2, OTHER_WRITE, "S", LINE + 64)]
    assert result(*turn * 3) == {"true": 0, "false": 0, "pairs": []}


def test_a_line_of_one_thread_and_one_that_is_only_read_never_miss():
    turn = [(1, WRITE, "S", LINE), (1, READ, "L", LINE + 8), (1, READ, "L", LINE + 64), (2, READ, "L", LINE + 72)]
    assert result(*turn * 3) == {"true": 0, "false": 0, "pairs": []}


def test_a_miss_is_true_sharing_if_news_are_read_at_any_time_before_the_line_is_lost():
    turn = [(1, WRITE, "S", LINE), (2, READ, "L", LINE + 8), (2, ELSEWHERE, "L", LINE)]
    assert result(*turn * 3) == {"true": 2, "false": 0, "pairs": []}


def test_news_that_a_false_miss_brought_count_when_they_are_read_after_the_next():
    once = [(2, READ, "L", LINE + 8), (1, WRITE, "S", LINE), (2, READ, "L", LINE + 8), (1, WRITE, "S", LINE + 16)]
    found = result(*once, (2, READ, "L", LINE))
    assert (found["true"], found["false"]) == (1, 1)


def test_an_access_across_two_lines_touches_both():
    turn = [(1, WRITE, "S", LINE + 60), (2, READ, "L", LINE + 68)]
    pair = {"writer": WRITE, "victim": READ, "misses": 1, "lines": [LINE // 64 + 1]}
    assert result(*turn * 3, size=8) == {"true": 0, "false": 1, "pairs": [pair]}
    assert result(*turn * 3, size=4)["false"] == 0


def test_what_comes_before_the_marker_and_after_it_is_left_out():
    ping_pong = trace(*[(1, WRITE, "S", LINE), (2, READ, "L", LINE)] * 5)[3:-3]
    assert result((2, READ, "L", LINE), before="".join(ping_pong)) == {"true": 0, "false": 0, "pairs": []}
    assert simulate([*trace((1, READ, "L", LINE)), *ping_pong]) == simulate(trace((1, READ, "L", LINE)))


def test_each_graph_is_for_itself():
    lines = trace(*[(1, WRITE, "S", LINE), (2, READ, "L", LINE)] * 2)
    assert [graph["true"] for graph in simulate(lines * 2)] == [1, 1]


def test_places_are_ours_and_pairs_of_the_same_places_are_one():
    text = """0x0000000000401000
std::__atomic_base<unsigned long>::store(unsigned long, std::memory_order)
/usr/include/c++/12/bits/atomic_base.h:464 (discriminator 2)
aspen::Row::push(aspen::Batch const&, aspen::RunState const&)
/home/aspen_jax/engine/ready_pool.cc:37 (discriminator 4)
0x0000000000401010
aspen::RunState* aspen::walk<aspen::Pooled>(aspen::Node*)
/home/aspen_jax/engine/dse.h:48
0x0000000000401020
??
??:0
"""
    names = sharing.parse_names(text)
    assert names == {0x401000: "Row::push ready_pool.cc:37", 0x401010: "walk dse.h:48", 0x401020: "outside the program"}
    pairs = [{"writer": 0x401000, "victim": 0x401010, "misses": misses, "lines": [1, misses]} for misses in (2, 3)]
    pairs.append({"writer": 0x401020, "victim": 0x401010, "misses": 9, "lines": [5]})
    assert sharing.by_name(pairs, names) == [
        {"writer": "outside the program", "victim": "walk dse.h:48", "misses": 9, "lines": 1},
        {"writer": "Row::push ready_pool.cc:37", "victim": "walk dse.h:48", "misses": 5, "lines": 3},
    ]


def test_a_missing_tool_is_named(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert main(["sharing"]) == 2
    assert "valgrind is needed for this benchmark and was not found; install it (Debian: valgrind)" in capsys.readouterr().err


# Counters of parents and nodes of queues lie side by side on purpose (docs/results/scheduling.md).
PACKED = {"is_last_parent_of_shared", "Batch::add", "Queues::push", "Queues::pop", "walk"}


@pytest.mark.skipif(None in TOOLS.values(), reason=f"not found: {', '.join(t for t, path in TOOLS.items() if path is None)}")
def test_the_engine_shares_nothing_else_falsely_at_every_tile(record, capsys):
    assert main(["sharing", "--rounds", "4", "--json", str(record)]) == 0
    assert "misses a tile" in capsys.readouterr().out
    results = json.loads(record.read_text())["results"]
    assert [graph["title"].partition(":")[0] for graph in results] == ["stencil", "random"]
    for graph in results:
        places = "written at", "missed at"
        others = [pair for pair in graph["rows"] if not {pair[at].split()[0] for at in places} <= PACKED]
        # Without lines of their own the workers' seats alone have 0.11 and 0.35 a tile.
        assert sum(pair["a tile"] for pair in others) < 0.05, others
