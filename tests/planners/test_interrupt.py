"""Ctrl-C: whatever a long plan is busy with, it stops, quietly, and leaves no partial file."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from coppice.bounds import Problem
from coppice.bounds.lp.solver import run_interruptibly
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.files.plan_file import read_plan, write_plan
from coppice.schedule.loads import forest_loads
from coppice.schedule.plan import Plan
from coppice.topology import resolve
from coppice.topology.operations import set_link_rate
from coppice.topology.readers.document import write_topology

HANGS_S = 120.0
TRIES = 5
"""A busy machine may let a stage pass before Ctrl-C is pressed."""
LATER = [pytest.param(after, marks=pytest.mark.slow) for after in (0.1, 0.4, 1.2)]
"""More moments, in seconds after a stage has begun."""

STAGES = {
    "bound": b"computing the bound",
    "plan": b"planning",
    "verify": b"verifying the plan",
    "figures": b"measuring the trees",
    "ring": b"looking for the best ring",
    "write": b"writing the plan",
}

AFTER_WRITING = b"looking for the size that has the rate"
"""Once this shows, the file is whole: a signal that comes so late interrupts nothing."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended that was interrupted.

    Attributes:
        seconds: From the signal to the end of the process.
        code: Exit code.
        out: Standard output.
        terminal: What came to the terminal after the signal.
        finished: It was done before the signal came.
    """

    seconds: float
    code: int
    out: bytes
    terminal: bytes
    finished: bool


def interrupted(arguments: list[str], *, stage: str, after: float) -> Outcome:
    """Run `coppice` on a terminal and press Ctrl-C ``after`` seconds into a stage, as its spinner tells."""
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "coppice", *arguments]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        while STAGES[stage] not in shown:
            shown += _read(reader) or pytest.fail(f"the stage {stage!r} never came: {shown[-200:]!r}")
        time.sleep(after)
        finished = process.poll() is not None
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=HANGS_S)
        seconds = time.monotonic() - begin
        rest = b""
        while piece := _read(reader):
            rest += piece
        os.close(reader)
    print(f"{' '.join(arguments)}: stopped {seconds:.2f} s after Ctrl-C, {after} s into {stage!r}")
    return Outcome(seconds, process.returncode, out, rest, finished or AFTER_WRITING in rest)


def _read(reader: int) -> bytes:
    """What the terminal shows next, nothing once the process is gone."""
    try:
        return os.read(reader, 65536)
    except OSError:  # how Linux tells that the other end is closed
        return b""


def check_stopped(arguments: list[str], folder: Path, *, stage: str, after: float) -> None:
    """Interrupt a plan that writes into ``folder``, and look at what remains."""
    before = sorted(folder.iterdir())
    made = folder / "plan.json"
    old = made.read_bytes() if made.exists() else None
    for _ in range(TRIES):
        outcome = interrupted([*arguments, "-o", str(made)], stage=stage, after=after)
        if not outcome.finished:
            break
        made.unlink()
        if old is not None:
            made.write_bytes(old)
    assert not outcome.finished, "it was done before it could be interrupted: choose a larger one"
    assert outcome.code == 130
    assert outcome.out == b""
    for word in (b"Traceback", b"Error", b"error:", b"terminate called"):
        assert word not in outcome.terminal
    assert b"\x1b[?25h" in outcome.terminal, "the cursor stays hidden"
    assert sorted(folder.iterdir()) == before, "a file was left"


@pytest.fixture(scope="module")
def one_slow_nic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 A100 boxes without symmetry: three seconds of native packing."""
    topology = resolve("dgx-a100", boxes=256)
    topology = set_link_rate(topology, "box0/gpu0", "box0/mlx5_0", "50%")
    path = tmp_path_factory.mktemp("topologies") / "slow-nic.json"
    write_topology(topology, path)
    return path


class TestForest:
    @pytest.mark.parametrize("after", [0.0, *LATER])
    def test_native_packing(self, one_slow_nic: Path, tmp_path: Path, after: float) -> None:
        arguments = ["plan", str(one_slow_nic), "-c", "all_gather", "--no-ring"]
        check_stopped(arguments, tmp_path, stage="plan", after=after)

    @pytest.mark.parametrize(
        ("stage", "after"),
        [("verify", 0.0), ("write", 0.0), pytest.param("write", 0.3, marks=pytest.mark.slow)],
    )
    def test_python_stages_of_a_million_edges(self, tmp_path: Path, stage: str, after: float) -> None:
        arguments = ["plan", "dgx-a100", "--boxes", "128", "-c", "all_gather", "--no-ring"]
        check_stopped(arguments, tmp_path, stage=stage, after=after)

    def test_a_file_that_was_there_stays(self, one_slow_nic: Path, tmp_path: Path) -> None:
        (tmp_path / "plan.json").write_text("older")
        arguments = ["plan", str(one_slow_nic), "-c", "all_gather", "--no-ring"]
        check_stopped(arguments, tmp_path, stage="plan", after=0.3)
        assert (tmp_path / "plan.json").read_text() == "older"

    @pytest.mark.slow
    @pytest.mark.parametrize("after", [0.2, *LATER])
    def test_templates_of_65536_gpus(self, tmp_path: Path, after: float) -> None:
        arguments = ["plan", "torus", "--set", "dims=256x256", "-c", "all_gather", "--no-ring"]
        check_stopped(arguments, tmp_path, stage="plan", after=after)


class TestOtherPlanners:
    @pytest.mark.slow
    @pytest.mark.parametrize("after", [0.1, 0.3])
    def test_linear_program_of_all_to_all(self, tmp_path: Path, after: float) -> None:
        arguments = ["plan", "random-balanced", "--set", "gpus=48", "-c", "all_to_all"]
        check_stopped(arguments, tmp_path, stage="bound", after=after)

    @pytest.mark.parametrize("after", [0.5, *LATER])
    def test_linear_program_of_all_reduce(self, tmp_path: Path, after: float) -> None:
        arguments = ["plan", "random-balanced", "--set", "gpus=60", "-c", "all_reduce"]
        check_stopped(arguments, tmp_path, stage="bound", after=after)

    @pytest.mark.slow
    def test_search_for_the_best_ring(self, tmp_path: Path) -> None:
        arguments = ["plan", "dgx-a100", "--boxes", "128", "-c", "all_gather", "--ring"]
        check_stopped(arguments, tmp_path, stage="ring", after=0.2)


def test_a_solver_that_is_slow_to_stop_is_waited_for() -> None:
    """Leaving while it is at work would abort the process."""

    class Slow:
        def __init__(self) -> None:
            self.cancelled, self.stopped = threading.Event(), False

        def run(self) -> None:
            signal.raise_signal(signal.SIGINT)
            self.cancelled.wait(300)
            time.sleep(1.3)
            self.stopped = True

        def cancelSolve(self) -> None:  # noqa: N802  (HiGHS names it so)
            self.cancelled.set()

    solver = Slow()
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(solver)
    assert solver.stopped


class TestWriting:
    def test_interrupted_writing_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem = Problem(topology=resolve("dgx-a100", boxes=2), collective=Collective.ALL_GATHER)
        forest = plan_forest(problem)
        made = Plan(problem=problem, inv_rate=forest_loads(forest).inv_rate, forest=forest)

        def interrupt(*_: object) -> None:
            assert len(list(tmp_path.iterdir())) > bool(written), "nothing was under way"
            raise KeyboardInterrupt

        for written in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    write_plan(made, tmp_path / "plan.json")
            assert [path.name for path in tmp_path.iterdir()] == ["plan.json"] * written
            write_plan(made, tmp_path / "plan.json")
        assert read_plan(tmp_path / "plan.json").inv_rate == made.inv_rate
