"""The torch backend: every kind of call, every way to train, compiled programs, and how programs are started."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")

from run.torch.launching import run_ranks
from support.plan_sets import made_set

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def cases_of(script: str) -> list[str]:
    """Names of the functions under ``@case`` in a script."""
    tree = ast.parse((HERE / script).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and [ast.unparse(each) for each in node.decorator_list] == ["case"]
    ]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("backend_worker.py", 4, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def calls(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["calls"] for each in outcomes]


@pytest.mark.parametrize("name", cases_of("api_worker.py"))
def test_call(calls: list[dict[str, Any]], name: str) -> None:
    """In shared memory, and by messages along a ring; gloo shows that the case itself is right where it can."""
    for rank, outcome in enumerate(calls):
        for mode in ("shm", "messages"):
            assert outcome[mode].get(name, "did not run") == "", f"rank {rank}, {mode}"
        assert outcome["gloo"].get(name, "") == "", f"rank {rank}, gloo"


def test_what_is_planned_does_not_run_on_gloo(calls: list[dict[str, Any]]) -> None:
    """An operation that is compared the wrong way round would fall through to gloo unseen."""
    wanted = {"all_reduce": 3, "broadcast": 1, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    for outcome in calls:
        assert outcome["shm"]["planned_calls"] == outcome["messages"]["planned_calls"] == wanted


@pytest.fixture(scope="module")
def losses(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["trainings"] for each in outcomes]


def check_losses(losses: list[dict[str, Any]], name: str) -> None:
    wanted = losses[0]["gloo"][name]
    assert isinstance(wanted, list), wanted
    for outcome in losses:
        for mode in ("shm", "messages"):
            found = outcome[mode].get(name, "did not run")
            assert isinstance(found, list), f"{mode}: {found}"
            assert found == pytest.approx(wanted, rel=1e-5), mode


@pytest.mark.parametrize("name", cases_of("training_worker.py"))
def test_training_has_the_losses_of_gloo(losses: list[dict[str, Any]], name: str) -> None:
    check_losses(losses, name)


@pytest.mark.slow
def test_compiled_collectives(tmp_path: Path) -> None:
    ranks = run_ranks("backend_worker.py", 4, tmp_path, "aot_eager", "inductor", timeout_s=550)
    outcome = [each["trainings"] for each in ranks]
    for name in ("aot_eager", "inductor"):
        check_losses(outcome, name)


def torchrun(ranks: int, script: Path, *arguments: str, **variables: str) -> str:
    """What a program says that is started as users do."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses_of(output: str) -> list[float]:
    return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("epoch")]


def run_example(folder: Path, *, ranks: int = 3) -> list[float]:
    """Losses of the example on a few ranks, planned for a ring by the environment."""
    from coppice.topology.presets import preset
    from coppice.topology.readers.document import write_topology

    write_topology(preset("ring", gpus=ranks), folder / "ring.json")
    variables = {
        "COPPICE_TOPOLOGY": str(folder / "ring.json"),
        "COPPICE_ENGINE": "torch",
        "COPPICE_THRESHOLD": "0",
        "COPPICE_CACHE": str(folder / "cache"),
    }
    return losses_of(torchrun(ranks, EXAMPLE, *SHORT, **variables))


EXAMPLE, SHORT = ROOT / "examples" / "train_ddp.py", ("--epochs", "2", "--samples", "200")


@pytest.mark.slow
def test_a_program_started_by_torchrun(tmp_path: Path) -> None:
    first, second = run_example(tmp_path, ranks=2)
    assert second < first
    assert list((tmp_path / "cache" / "plans").glob("all_reduce-*.json"))


@pytest.mark.slow
def test_the_example_has_the_losses_of_gloo(tmp_path: Path) -> None:
    native = losses_of(torchrun(3, EXAMPLE, *SHORT, "--backend", "gloo"))
    assert len(native) == 2
    assert run_example(tmp_path) == pytest.approx(native, rel=1e-4)
    scheduled = losses_of(torchrun(3, EXAMPLE, *SHORT, "--backend", "gloo", "--policy", "bytescheduler"))
    assert scheduled == pytest.approx(native, rel=1e-4)


def test_a_plan_file_is_the_algorithm(tmp_path: Path) -> None:
    from coppice.planners.planning import plan
    from coppice.schedule.files.plan_file import write_plan
    from coppice.topology.presets import preset

    write_plan(plan(preset("ring", gpus=4), "all_gather", algorithm="ring"), tmp_path / "plan.json")
    for outcome in run_ranks("plan_worker.py", 4, tmp_path):
        assert outcome["gathered"] == [float(rank) for rank in range(4) for _ in range(4)]
        assert outcome["sum"] == [6.0] * 8
    kept = {each.name.partition("-")[0] for each in (tmp_path / "cache" / "plans").iterdir()}
    assert kept == {"all_reduce"}  # the other plan was given


def test_another_network_in_the_middle_of_calls(tmp_path: Path) -> None:
    """Results stay what they are, a call issued before is not torn, and networks that differ are refused everywhere."""
    from coppice.topology.presets import preset
    from coppice.topology.readers.document import write_topology

    write_topology(preset("ring", gpus=4), tmp_path / "ring.json")
    for outcome in run_ranks("replan_worker.py", 4, tmp_path):
        assert outcome["right"] == [True] * 6
        differs, shared = outcome["errors"]
        assert "a new network differs between ranks" in differs
        assert "found one by shared memory or puts: its network stays" in shared
    plans = [each.name for each in (tmp_path / "cache" / "plans").iterdir()]
    assert len([name for name in plans if name.startswith("all_reduce-")]) == 2  # one of each network


def test_a_set_of_plans_is_the_algorithm_by_size(tmp_path: Path) -> None:
    made_set("ring", "recursive-doubling", "bruck").save(tmp_path / "plans")  # they change at 1K and 2K
    variables = {"COPPICE_ALGORITHM": str(tmp_path / "plans")}
    for outcome in run_ranks("set_worker.py", 4, tmp_path, variables=variables):
        assert all(outcome["right"].values()), outcome["right"]
        assert outcome["gathered"] == [0.0, 1.0, 2.0, 3.0]
    kept = {each.name.partition("-")[0] for each in (tmp_path / "cache" / "plans").iterdir()}
    assert kept == {"all_gather"}  # the other plans were given
