"""`coppice switch model`: tables, sweeps, splits and pictures of aggregating systems."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.conftest import Run
from coppice.options.names import AGGREGATING


def test_the_table_has_every_system_or_a_reason(run: Run) -> None:
    done = run("switch", "model", "--size", "64M")
    assert done.code == 0, done.err
    for system in (*AGGREGATING, "ring", "ps"):
        assert f"\n  {system}" in done.out
    assert "camdoop: expected the workers of a 3D torus" in done.out
    record = json.loads(run("switch", "model", "--json").out)
    times = [each["time_us"] for each in record["systems"]]
    assert times == sorted(times)
    gains = {each["system"]: each["gain_over_ring"] for each in record["systems"]}
    assert gains["ring"] == 1
    assert gains["nvls"] == pytest.approx(14 / 9, rel=0.01)


def test_figures_of_the_literature(run: Run) -> None:
    """100 Gb/s, 6 us, 1 KiB of values: 43, 86 and 92.6 Gb/s."""
    rates = []
    for slots in (32, 64, 128):
        words = (
            *("switch", "model", "switchml", "--gb-per-s", "12.5", "--rtt-us", "6", "--slots", slots),
            "--json",
        )
        rates.append(8 * json.loads(run(*words).out)["systems"][0]["gb_per_s"])
    assert [round(rate, 1) for rate in rates] == [43.1, 86.1, 92.6]


def test_a_sweep_and_its_picture(run: Run, tmp_path: Path) -> None:
    words = (
        *("switch", "model", "switchml,camdoop,ring", "--sweep", "workers", "--values", "8,27", "--size"),
        "1G",
    )
    shown = run(*words).out.splitlines()
    assert [line.split() for line in shown[2:]] == [
        ["#", "workers", "switchml", "camdoop", "ring"],
        ["8", "11.57", "-", "7.139"],
        ["27", "11.57", "37.45", "6.478"],
    ]
    record = json.loads(run(*words, "--json").out)
    assert record["systems"]["camdoop"][0] is None
    if find_spec("matplotlib") is not None:
        for name in ("a.svg", "b.svg"):
            assert (
                run("switch", "model", "switchml,ring", "--sweep", "loss", "--plot", tmp_path / name).code
                == 0
            )
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_cluster_instead_of_figures(run: Run) -> None:
    words = ("switch", "model", "sharp@spine*,nvls", "--topology", "fat-tree", "--split", "forest")
    done = run(*words)
    assert done.code == 0, done.err
    assert "messages cost as in nccl-2.30" in done.out
    assert "27.3% in the network, the rest by hosts" in done.out
    assert "nvls: nvls needs a switch" in done.out
    record = json.loads(run(*words, "--json").out)
    assert record["systems"]["sharp@spine*"]["algbw_exact"] == "1/2"
    assert record["splits"]["sharp@spine*"]["share_exact"] == "3/11"


def test_a_split_of_figures(run: Run) -> None:
    done = run("switch", "model", "switchml,sharp", "--slots", "32", "--split", "ring")
    assert "58.5% in the network" in done.out
    assert "workers' links limit it, and a split brings nothing" in done.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("swichml", "did you mean 'switchml'"),
        ("--loss 2", "expected `--loss` as a probability of 0 to 0.5, found 2"),
        ("--gb-per-s fast", "found 'fast' at --gb-per-s"),
        ("--case slot=3", "expected --case with a field of the case, found 'slot'"),
        ("--case jobs=many", "expected --case jobs to be a number, found 'many'"),
        ("--sweep time", "expected a sweep over workers, slots or loss, found 'time'"),
        ("--plot a.png", "--plot draws a sweep"),
        ("--sweep-values 1,2", "--sweep-values are those of a sweep"),
        ("--sweep slots --sweep-values 1,x", "expected --sweep-values such as 2,8,32, found '1,x'"),
        ("--sweep slots --split ring", "expected one of --sweep and --split"),
        ("--boxes 2", "go with --topology"),
        ("--topology star --sweep slots", "expected bare figures for a sweep"),
        ("sharp --split rong", "expected `--split` as ring or ps"),
    ],
)
def test_what_means_nothing_is_refused(run: Run, words: str, told: str) -> None:
    done = run("switch", "model", *words.split())
    assert done.code == 2, done.out
    assert told in " ".join(done.err.split())
