"""`coppice select`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coppice.cli import app
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.verification.verify import verify

Call = Callable[..., Result]


@pytest.fixture
def call() -> Call:
    return lambda *arguments: CliRunner().invoke(app, ["select", *map(str, arguments)])


def test_picks_in_both_vocabularies(call: Call) -> None:
    done = call("--library", "open-mpi", "--collective", "broadcast", "--num-ranks", 20, "--size", "2M")
    assert done.exit_code == 0
    assert "bcast of 2 MiB among 20 ranks" in done.stdout
    assert "scatter_allgather (id 8)" in done.stdout
    assert "--algorithm scatter-allgather" in done.stdout
    assert "P < 32" not in done.stdout


def test_why_prints_the_rules_with_their_numbers(call: Call) -> None:
    done = call("-l", "open-mpi", "-c", "all_reduce", "--num-ranks", 20, "--size", 32, "--why")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in ("no P < 16 (20 < 16)", "yes P < 32 (20 < 32)", "yes m < 64 (32 < 64)"):
        assert line in lines
    assert "yes elements < P (8 < 20)" in lines


def test_why_prints_every_time_and_why_cells_are_missing(call: Call) -> None:
    done = call("dgx-h100", "--boxes", 4, "-l", "nccl", "--size", "1M", "--why")
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("Tree LL128 83.22") for line in lines)
    assert "latency: 14 + 2 x (7 x 1.25 + 2 x 8.5) = 65.5 us" in lines
    assert any("NVLS across boxes needs a network that adds" in line for line in lines)
    assert any("NICs beside their GPUs as in usual machines, at paths of class PIX" in line for line in lines)


def test_json(call: Call) -> None:
    done = call(
        "-l",
        "nccl",
        "--num-ranks",
        8,
        "--size",
        "1G",
        "--set",
        "bw_intra=20",
        "--set",
        "nvls_channels=0",
        "--json",
    )
    record = json.loads(done.stdout)
    assert (record["library"], record["protocol"], record["ours"]) == ("NCCL", "Simple", "nccl-ring")
    assert len(record["cells"]) == 18
    trail = json.loads(call("-l", "mpich", "--num-ranks", 8, "--size", "1M", "--json").stdout)["why"]
    assert trail[0] == {
        "table": "allreduce, ch4",
        "rule": "one box",
        "with_values": "one box: yes",
        "values": "one box: yes",
        "held": True,
        "depth": 0,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("-l", "open-mpi", "-c", "all_gather", "--num-ranks", 7, "--size", "7M"),
        ("-l", "open-mpi", "-c", "broadcast", "--num-ranks", 3, "--size", "96K", "--root", 2),
        ("-l", "mpich", "-c", "all_to_all", "--num-ranks", 12, "--size", 1200),
        ("-l", "mvapich2", "-c", "scatter", "--num-ranks", 5, "--size", 1000),
        ("-l", "nccl", "-c", "reduce_scatter", "--num-ranks", 8, "--size", "1G", "--set", "nvls_channels=0"),
        ("-l", "mpich", "-c", "barrier", "--num-ranks", 5, "--size", 0),
        ("-l", "nccl", "--num-ranks", 16, "--size", "1M"),
        ("dgx-h100", "--boxes", 2, "-l", "nccl", "--size", "1G", "--set", "nvls_channels=0"),
        ("dgx-a100", "--boxes", 2, "-l", "open-mpi", "-c", "broadcast", "--size", "1M"),
    ],
)
def test_writes_the_schedule(call: Call, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    path = tmp_path / "plan.json"
    done = call(*arguments, "-o", path)
    assert done.exit_code == 0, done.stderr
    plan = read_plan(path)
    assert verify(plan).ok
    assert f"--algorithm {plan.planner}" in done.stdout
    assert plan.problem.root == (
        2 if "--root" in arguments else 0 if "scatter" in arguments else plan.problem.root
    )


def test_plan_on_standard_output(call: Call) -> None:
    done = call("-l", "mpich", "-c", "all_gather", "--num-ranks", 4, "--size", 64, "-o", "-")
    assert done.exit_code == 0
    assert done.stdout.startswith("{")
    assert "picks" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-l", "gloo", "--num-ranks", 4, "--size", 1), "a library whose choice is known, found 'gloo'"),
        (("-l", "nccl", "--size", 1), "a topology or a number of ranks, found neither"),
        (("-l", "nccl", "--size", 1, "dgx-a100", "--num-ranks", 4), "found both"),
        (("-l", "nccl", "--size", 1, "--num-ranks", 8, "--boxes", 4), "--boxes is for a topology"),
        (("-l", "nccl", "--size", 1, "--num-ranks", 8, "--set", "nics=link"), "--set is for a topology"),
        (("-l", "mpich", "--size", 1, "--num-ranks", 8, "--set", "channels=2"), "--set is for a topology"),
        (("-l", "nccl", "--size", "1Q", "--num-ranks", 8), "--size to be bytes"),
        (("-l", "nccl", "--size", 1, "-c", "barrier", "--num-ranks", 8), "NCCL has no barrier"),
        (("-l", "nccl", "--size", 1, "nowhere"), "nowhere"),
        (("-l", "mpich", "--size", 1, "--num-ranks", 8, "-o", "-", "--json"), "not both"),
        (("-l", "mpich", "--size", 0, "--num-ranks", 8, "-o", "x"), "has no schedule here: an empty message"),
        (("-l", "open-mpi", "--size", 1, "--num-ranks", 1, "-o", "x"), "one rank: nothing moves"),
        (
            ("-l", "nccl", "--size", "1G", "--num-ranks", 8, "-o", "x"),
            "nvls works inside boxes: name a topology",
        ),
        (
            ("-l", "mpich", "--size", "1M", "--num-ranks", 5000, "-c", "broadcast", "-o", "x"),
            "up to 4,096 ranks",
        ),
    ],
)
def test_what_is_refused(call: Call, arguments: tuple[object, ...], says: str) -> None:
    done = call(*arguments)
    assert done.exit_code == 2, done.stdout
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_presets_keep_their_parameters(call: Call) -> None:
    done = call(
        "dgx-h100", "--boxes", 2, "-l", "nccl", "--size", 1, "--set", "nics=node", "--set", "channels=4"
    )
    assert done.exit_code == 0, done.stderr
    assert "rings and trees of 4 channels" in done.stdout
