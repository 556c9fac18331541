"""Rules from what nccl-tests printed and NCCL logged; files with faults are refused with the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli import app as coppice
from coppice.cli.tune import app
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.reading import read_logs
from coppice.tuning.fit import fit_runs
from coppice.tuning.logged import runs_of_logs
from coppice.tuning.records import LibraryChoice
from coppice.tuning.table import read_table

SIZES = (1024, 65536, 4194304)


def log(times: dict[int, float], *, variables: dict[str, str] | None = None, version: str = "2.27.7") -> str:
    """What all_reduce_perf prints on 2 hosts with 2 GPUs each, with NCCL's own lines."""
    lines = [f"node0:100:100 [0] NCCL INFO NCCL version {version}+cuda12.4"]
    lines += [
        f"node0:100:100 [0] NCCL INFO {name} set by environment to {value}."
        for name, value in {"NCCL_DEBUG": "INFO", **(variables or {})}.items()
    ]
    lines += ["# Collective test starting: all_reduce_perf", "# Using devices"]
    lines += [
        f"#  Rank  {rank} Group  0 Pid  47{rank} on  node{rank // 2} device  {rank % 2} [0000:1b:00] NVIDIA H100"
        for rank in range(4)
    ]
    lines += [
        f"{size:12d} {size // 4:12d}     float     sum      -1 {time:8.2f} 1.0 1.0 0 {9 * time:8.2f} 1.0 1.0 0"
        for size, time in times.items()
    ]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six runs by default, and six of tree with LL, which is twice as fast at the smallest size and slow elsewhere."""
    found = []
    for number in range(6):
        base = {size: 20 + size / 1000 + number / 10 for size in SIZES}
        tree = {size: time * (0.5 if size == SIZES[0] else 2) for size, time in base.items()}
        for name, text in (
            ("default", log(base)),
            ("tree", log(tree, variables={"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"})),
        ):
            path = tmp_path / f"{name}-{number}.log"
            path.write_text(text)
            found.append(path)
    return found


def test_the_expected_table(files: list[Path]) -> None:
    runs, left = runs_of_logs(read_logs(files))
    assert {(run.version, run.nodes, run.ranks, run.collective) for run in runs} == {
        ("2.27.7", 2, 4, Collective.ALL_REDUCE)
    }
    assert [run.choice for run in runs] == [LibraryChoice("tree", "ll")] * 3
    assert all(len(run.default_us) == len(run.time_us) == 6 and not run.paired for run in runs)
    assert all("in place" in words for words in left)
    small, rest = fit_runs(runs).rules
    assert (small.choice, rest.choice) == (LibraryChoice("tree", "ll"), None)
    assert small.gain == pytest.approx(2, rel=0.02)


def test_command(files: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "table.csv"
    found = CliRunner().invoke(app, ["from-logs", *map(str, files), "-o", str(output)])
    assert found.exit_code == 0, found.output
    assert "undo: unset NCCL_TUNER_PLUGIN" in found.output
    assert [rule.choice for rule in read_table(output).rules] == [LibraryChoice("tree", "ll"), None]
    made = CliRunner().invoke(app, ["export", str(output), "--to", "nccl-tuner"])
    assert "allreduce,128,8192,tree,ll,-1,2,4" in made.output


def test_what_cannot_be_compared(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found 3 sizes of the one and 0 of the other"):
        runs_of_logs(read_logs([path for path in files if path.name.startswith("default")]))
    other = tmp_path / "other.log"
    other.write_text(log({1024: 1.0}, version="2.30.7"))
    with pytest.raises(InputError, match=r"one version, found 2\.27\.7, 2\.30\.7"):
        runs_of_logs(read_logs([*files, other]))
    bad = tmp_path / "bad.log"
    bad.write_text(log({1024: 1.0}).replace("    1.00 1.0 1.0 0 ", "    1.00 x 1.0 0 "))
    with pytest.raises(InputError, match=r"bad\.log:\d+"):
        read_logs([bad])


def test_what_was_run_can_be_said_and_warnings_are_shown(tmp_path: Path) -> None:
    """Tables of old versions do not name the collective; ranks that are listed twice are runs without MPI."""
    path = tmp_path / "old.log"
    text = log({1024: 1.0, 2048: 2.0}).replace("# Collective test starting: all_reduce_perf\n", "")
    path.write_text(text)
    asked = CliRunner().invoke(coppice, ["tune", "from-logs", str(path)])
    assert asked.exit_code == 2
    assert "does not say which collective was run: give it (`--collective" in " ".join(asked.stderr.split())
    lists = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#  Rank"))
    rows = "".join(line for line in text.splitlines(keepends=True) if line.strip()[:1].isdigit())
    path.write_text(text.replace(lists, lists + lists) + rows)
    said = CliRunner().invoke(coppice, ["tune", "from-logs", str(path), "--collective", "all_reduce"])
    assert said.exit_code == 2
    assert "build nccl-tests with MPI=1" in " ".join(said.stderr.split())
    assert "found 2 sizes of the one and 0 of the other" in " ".join(said.stderr.split())


def test_times_of_the_host_are_not_fitted(tmp_path: Path) -> None:
    path = tmp_path / "inspector.log"
    header = {"id": "0xa", "rank": 0, "n_ranks": 4, "nnodes": 2}
    call = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 1024, "coll_exec_time_us": 9}
    path.write_text(
        json.dumps({"header": header, "coll_perf": call | {"coll_timing_source": "collective_cpu"}})
    )
    with pytest.raises(InputError, match="found 0 sizes of the one and 0 of the other"):
        runs_of_logs(read_logs([path]))
