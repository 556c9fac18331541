"""Predictions from the cost model that a log holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli import app
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.reading import parse_log
from coppice.selection.nccl.releases import constants
from coppice.tuning.logged import select_by_log

HEAD = """\
n1:100:100 [0] NCCL INFO NCCL_DEBUG set by environment to INFO
n1:100:100 [0] NCCL INFO NCCL version 2.27.7+cuda12.9
"""
COMM = """\
n1:100:{thread} [0] NCCL INFO comm 0xd{thread} rank 0 nRanks {ranks} nNodes {nodes} localRanks 8 localRank 0 MNNVL 0
n1:100:{thread} [0] NCCL INFO   Algorithm   |                  Tree                  |                  Ring          |
n1:100:{thread} [0] NCCL INFO   Protocol    |   LL |  LL128 |  Simple |   LL |  LL128 |  Simple |
n1:100:{thread} [0] NCCL INFO  Max NThreads |  512 |    640 |     512 |  512 |    640 |     256 |
n1:100:{thread} [0] NCCL INFO     AllReduce |{row}
n1:100:{thread} [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 32 per peer
"""
ROW = " 25.0/  10.0 |   48.0/   0.0 |   92.0/ 220.0 |   36.0/  12.0 |   75.0/ 235.0 |  131.0/ 250.0 |"
COMM = COMM.replace("{row}", ROW)
ONE = HEAD + COMM.format(thread=110, ranks=16, nodes=2)


def cells(size: int) -> dict[str, float | None]:
    picked = select_by_log(parse_log(ONE.encode(), file="log"), Collective.ALL_REDUCE, size)
    return {f"{cell.algorithm}/{cell.protocol}": cell.time_us for cell in picked.cells}


def test_times_by_hand() -> None:
    """Latency and bandwidth of the table, with the corrections of trees by size and of rings across nodes."""
    small = cells(1024)
    tree = constants().tree_correction["LL"][4]  # 1024 / 64 is 2^4
    assert small["Tree/LL"] == pytest.approx(25 + 1024 / (1000 * 10 * tree))
    assert small["Tree/LL128"] is None
    assert small["Ring/LL128"] == pytest.approx(75 + 1024 / 235e3)
    assert small["Ring/Simple"] == pytest.approx(
        131 + 1024 / 250e3
    )  # 4 bytes per channel and rank: no plateau
    large = cells(1 << 30)
    assert large["Ring/Simple"] == pytest.approx(131 * 1.4 + (1 << 30) / 250e3)


def test_the_smallest_time_wins() -> None:
    log = parse_log(ONE.encode(), file="log")
    assert select_by_log(log, Collective.ALL_REDUCE, 1024).algorithm == "Tree/LL"
    picked = select_by_log(log, Collective.ALL_REDUCE, 1 << 30)
    assert (picked.algorithm, picked.ours, picked.ranks, picked.version) == (
        "Ring/Simple",
        "nccl-ring",
        16,
        "2.27.7",
    )


def test_what_the_log_does_not_hold() -> None:
    log = parse_log(ONE.encode(), file="log")
    with pytest.raises(InputError, match="has no all_gather that is on"):
        select_by_log(log, Collective.ALL_GATHER, 1024)
    with pytest.raises(InputError, match="with a cost model"):
        select_by_log(log, Collective.ALL_TO_ALL, 1024)
    with pytest.raises(InputError, match="holds no cost model"):
        select_by_log(parse_log(HEAD.encode(), file="log"), Collective.ALL_REDUCE, 1024)
    two = (
        HEAD
        + COMM.format(thread=110, ranks=16, nodes=2)
        + COMM.format(thread=111, ranks=8, nodes=1).replace("25.0/", "9.0/")
    )
    log = parse_log(two.encode(), file="log")
    with pytest.raises(InputError, match=r"16 on 2 nodes .*8 on 1 nodes"):
        select_by_log(log, Collective.ALL_REDUCE, 1024)
    assert select_by_log(log, Collective.ALL_REDUCE, 1024, ranks=8).cell.latency_us == 9  # type: ignore[union-attr]


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "tuning.log"
    path.write_text(ONE)
    words = ["select", "--library", "nccl", "--log", str(path), "--collective", "all_reduce", "--size", "1K"]
    shown = CliRunner().invoke(app, [*words, "--why"])
    assert shown.exit_code == 0, shown.output
    assert "Tree/LL" in shown.output
    assert "line 7 of the log: 25 us, 10 GB/s" in shown.output
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["algorithm"] == "Tree/LL"
    wrong = CliRunner().invoke(app, [*words, "--set", "channels=4"])
    assert wrong.exit_code == 2
    assert "the log says all of it" in wrong.output


def test_command_says_what_of_the_log_was_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tuning.log"
    path.write_text(ONE + "n1:100:110 [0] NCCL INFO     AllReduce |    25.2/  11.3 |    48.5/\n")
    words = ["select", "--library", "nccl", "--log", str(path), "--collective", "all_reduce", "--size", "1K"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "begins like a row of the cost model" in " ".join(shown.stderr.split())
