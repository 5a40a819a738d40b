"""The skeleton of benchmarks, and the pages that are made of the records that it writes."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
from typing import Annotated

import pytest
import tyro

from benchmarks.__main__ import COMMANDS, main
from benchmarks.benchmark import Disagreement, Run, Table, benchmark, check_agreement, settings_of
from benchmarks.options import File, Sizes
from benchmarks.page import lines, read, tables
from benchmarks.zoo.model import Size

Names = Annotated[tuple[str, ...], tyro.conf.Positional]


@benchmark
def races(names: Names = ("a", "b"), size: Sizes = Size(2), rounds: int = 1, json: File = None) -> Run:  # noqa: B008 - immutable
    table = Table("Races", {"": "", "min": "s", "spread": ".0%", "times as fast": ".2f", "tiles": "d"})
    table.add("a", 0.5, 0.25, 1.5, 7, samples_s=(0.5, 1.0))
    table.add("b", 0.01234, None, 2, None)
    yield table
    yield "a line"
    yield Table("Not printed", {"rate": ""}, [{"rate": 1234.5}, {"rate": 0.00012345}], printed="")
    yield 1


def test_tables_are_printed_and_recorded(tmp_path, capsys):
    file = tmp_path / "races.json"
    assert races(("a",), json=file) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[:3] == [
        "Races",
        "       min  spread  times as fast  tiles",
        "a   500 ms     25%           1.50      7",
    ]
    assert out.endswith("a line\n")
    record = json.loads(file.read_text())
    assert record["words"] == ["a"]
    assert record["settings"] == {"batch": 2, "image_size": None, "tokens": None, "rounds": 1}
    assert record["results"][0]["rows"][0]["samples_s"] == [0.5, 1.0]


def test_a_page_has_a_number_a_cell_and_units_in_the_header(tmp_path, capsys):
    file = tmp_path / "races.json"
    races(json=file)
    capsys.readouterr()
    assert main(["page", str(file)]) == 0
    page = capsys.readouterr().out.splitlines()
    assert page[0].startswith("## races, 20")
    assert "jax 0." in page[2]
    assert page[4] == "`python -m benchmarks races a b --batch 2 --rounds 1`"
    assert page[6:] == [
        "Races",
        "",
        "|  | min, ms | spread, % | times as fast | tiles |",
        "| --- | --- | --- | --- | --- |",
        "| a | 500 | 25 | 1.50 | 7 |",
        "| b | 12.3 |  | 2.00 |  |",
        "",
        "Not printed",
        "",
        "| rate |",
        "| --- |",
        "| 1234 |",
        "| 0.000123 |",
        "",
    ]


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if hasattr(command, "__wrapped__")])
def test_the_line_of_a_page_gives_the_same_options(name, tmp_path):
    given = []
    signature = inspect.signature(COMMANDS[name])

    @functools.wraps(COMMANDS[name].__wrapped__)
    def command(*args, **options):
        given.append(settings_of(signature.bind(*args, **options).arguments))
        yield "nothing"

    file = tmp_path / f"{name}.json"
    place = ("--json", str(file)) if "json" in signature.parameters else ("--output", str(tmp_path))
    tyro.cli(benchmark(command), args=place)
    line = next(line for line in lines(read(file)) if line.startswith("`"))
    words = shlex.split(line.strip("`"))[len(["python", "-m", "benchmarks", name]) :]
    tyro.cli(benchmark(command), args=[*words, *place])
    assert given[0] == given[1]


def test_plain_results_make_a_table_for_each_group():
    timings = {"joined": {"min_s": 0.002, "samples_s": [0.002]}}
    results = {"table 1": [{"workload": "gemm", "timings": timings}], "about": {"choose": {"min_s": 0.5}}}
    first, second = tables(results)
    assert (first.title, first.rows) == ("", [{"": "about", "choose min_s": 0.5}])
    assert (second.title, second.rows) == ("table 1", [{"": "0", "workload": "gemm", "timings joined min_s": 0.002}])
    record = {"benchmark": "chains", "machine": {}, "settings": {"full": False}, "results": results}
    assert "| workload | timings joined min, ms |" in "\n".join(lines(record))


@pytest.mark.parametrize("content", [None, "nothing", "[]", '{"results": []}'])
def test_what_is_no_record_is_refused(tmp_path, capsys, content):
    file = tmp_path / "other.json"
    if content is not None:
        file.write_text(content)
    assert main(["page", str(file)]) == 2
    assert "is no record of a benchmark" in capsys.readouterr().err


def test_sides_that_differ_are_named():
    check_agreement("sums", {"one": lambda: 1.0, "other": lambda: 1.0})
    with pytest.raises(Disagreement, match="sums: other differs by"):
        check_agreement("sums", {"one": lambda: 1.0, "other": lambda: 1.1})
