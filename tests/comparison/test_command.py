"""`coppice compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coppice.comparison.table import COLUMNS
from coppice.simulation import DEFAULT_MODEL
from support.commands import Answer, run

STAR = ("star", "--set", "gpus=4", "--set", "gb_per_s=10")


def compared(*words: str | Path) -> Answer:
    return run("compare", *words)


def test_table_ranges_and_model() -> None:
    done = compared(*STAR, "--sizes", "1K:64M:256", "--algorithm", "forest, ring", "--jobs", "1")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "# all_reduce on star of 4 (4 ranks)"
    assert lines[1] == f"# model: {DEFAULT_MODEL.text}"
    assert lines[2].startswith("# optimum: 6.66667 GB/s algbw: ")
    assert lines[3].startswith("# latency bound: 9.3 us: LL starts in 6.6 us")
    assert [line.split()[0] for line in lines[7:10]] == ["1024", "262144", "67108864"]
    assert "best per size" in lines
    assert "of the limit at 64M" in lines[-1]


def test_all_prints_every_algorithm() -> None:
    few = compared(*STAR, "--sizes", "1K", "-a", "forest,ring", "-j", "1")
    every = compared(*STAR, "--sizes", "1K", "-a", "forest,ring", "-j", "1", "--all")
    assert len(every.out.splitlines()) == len(few.out.splitlines()) + 1 + 2 + 2


def test_json() -> None:
    plain = ("--model", "alpha-beta")
    record = json.loads(compared(*STAR, "--sizes", "1K,1M", "-a", "ring", "-j", "1", *plain, "--json").out)
    assert set(record) == {
        *("format", "version"),
        *("collective", "topology", "topology_sha256", "ranks", "root", "model", "optimum", "latency_bound"),
        *("ranges", "best", "nccl", "refusals", "rows", "in_network", "modelled"),
    }
    assert record["optimum"]["algbw_exact"] == "20/3"
    assert record["model"]["overhead_us"] == 1.0
    assert record["latency_bound"]["time_us"] == 1.0
    assert [row["size_bytes"] for row in record["rows"]] == [2**10, 2**20]
    renamed = {
        "parameters_text": "parameters",
        "relays_used": "relays",
        "switches_used": "in_network",
        "reached_algbw_gb_per_s": "algbw_gb_per_s",
        "reached_busbw_gb_per_s": "busbw_gb_per_s",
        "link_name": "link",
    }
    assert set(record["rows"][0]) == {*COLUMNS, *renamed}
    assert all(row[name] == row[former] for row in record["rows"] for name, former in renamed.items())
    assert record["ranges"] == record["best"]
    assert record["best"][0]["algorithm"] == "ring"


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    table, picture, results = (tmp_path / name for name in ("t.csv", "p.png", "r.jsonl"))
    arguments = (*STAR, "--sizes", "1K,1M", "-a", "ring", "-j", "1")
    done = compared(*arguments, "--csv", table, "--plot", picture, "--results", results)
    assert done.status == 0, done.err
    assert table.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(results.read_text().splitlines()) == 3
    assert compared(*arguments, "--results", results).out == done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.png", "r.jsonl", "t.csv"]


def test_options_of_the_model_and_the_problem() -> None:
    arguments = ("--sizes", "1K", "-a", "binomial", "-j", "1", "-c", "broadcast", "--root", "2", "--json")
    slow = json.loads(compared(*STAR, *arguments, "--assume", "overhead=5", "--assume", "sharing=fair").out)
    assert (slow["root"], slow["model"]["overhead_us"], slow["model"]["sharing"]) == (2, 5.0, "fair")
    assert slow["rows"][0]["time_us"] > 10


def test_both_classes_of_rates() -> None:
    arguments = ("dgx-a100", "--sizes", "1G", "-a", "ring", "-j", "1")
    both = compared(*arguments, "--rates", "nominal,measured")
    assert both.status == 0, both.err
    assert "measured" in both.out
    nominal = json.loads(compared(*arguments, "--rates", "nominal", "--json").out)
    records = json.loads(compared(*arguments, "--rates", "nominal,measured", "--json").out)["comparisons"]
    assert {"format": "coppice-compare-output", "version": 1, **records[0]} == nominal
    assert records[1]["rows"][0]["time_us"] > records[0]["rows"][0]["time_us"]


@pytest.mark.slow
def test_gain() -> None:
    arguments = ("dgx-a100", "--boxes", "1,2", "--gain", "--sizes", "64M", "-j", "1", "-c", "all_gather")
    done = compared(*arguments)
    assert done.status == 0, done.err
    assert done.out.splitlines()[3].split()[:2] == ["2", "16"]
    record = json.loads(compared(*arguments, "--json").out)
    assert [row["boxes"] for row in record["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*STAR, "--sizes", "1X"), "expected --sizes"),
        ((*STAR, "-a", "rnig"), "did you mean ring"),
        ((*STAR, "--order", "any"), "expected an order"),
        ((*STAR, "--plot", "picture.gif"), "*.png"),
        ((*STAR, "--sizes", "0"), "1 byte or more"),
        ((*STAR, "-c", "all_to_all", "--in-network"), "all_to_all"),
        (("dgx-a100", "--boxes", "1,2"), "with --gain"),
        (("dgx-a100", "--boxes", "none"), "expected --boxes"),
        (("dgx-a100", "--boxes", "2", "--gain", "--csv", "x.csv"), "leave out --csv"),
        (("dgx-a100", "--rates", "nominal,fast"), "nominal, measured"),
        (("dgx-a100", "--rates", "nominal,measured", "--results", "x"), "a time"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    done = compared(*arguments)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_what_is_left_out_and_what_needs_help_is_named() -> None:
    """Relaying is a mark, the help of switches a section with an optimum of its own, and the rest has its reason."""
    words = (
        *("dgx-h100", "--boxes", "2", "--sizes", "64M", "-j", "1", "-a"),
        "forest,allgather-reduce,nvls-tree,nvls",
    )
    shown = compared(*words).out
    assert "in-network: with switches that copy and add (optimum 400 GB/s algbw)\n  64M nvls-tree" in shown
    assert "do not apply\n  nvls: nvls needs a switch" in shown
    assert "allgather-reduce relays" in compared(*words, "--all").out
    refused = compared(*words, "--no-relay-gpus", "--no-in-network").out
    assert "allgather-reduce: they send between GPUs" in refused
    assert "in-network: with" not in refused
    assert "nvls-tree: nvls-tree lets switches copy and add" in refused


def test_an_interrupted_comparison_says_what_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.jsonl"
    words = (*STAR, "-a", "ring", "-j", "1", "--results", results)
    assert compared(*words, "--sizes", "1K,1M").status == 0

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coppice.comparison.sweep.compare", interrupted)
    done = compared(*words, "--sizes", "1K:1G")
    assert (done.status, done.out) == (130, "")
    assert done.err == f"interrupted: {results} keeps 2 measurements, from which the same command goes on.\n"
    plain = compared(*STAR, "-a", "ring", "-j", "1", "--sizes", "1K")
    assert (plain.status, plain.err) == (130, "")
