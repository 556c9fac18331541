"""Our engine over NCCL on the emulated runtime where something is wrong: it says so, and ends in the stated time."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import coppice
from cli.conftest import Run, run
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset
from emulated_gpu.test_nccl import HERE, SEEDS, environment, fixture_library

__all__ = ["fixture_library", "run"]

_WAITS = "NCCL still waits for it: this process ends."


def told(library: str, fault: str, ranks: int, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a test of ``nccl_faults.py`` prints; it has to end."""
    return subprocess.run(
        [sys.executable, HERE / "nccl_faults.py", library, fault, str(ranks)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def found(library: str, fault: str, ranks: int, variables: dict[str, str]) -> Any:
    """What it found."""
    done = told(library, fault, ranks, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("fault", ["alone", "one_wait_more"])
def test_what_never_ends_is_ended(library: str, tmp_path: Path, fault: str) -> None:
    """NCCL's abort waits for the wait on the stream: whoever gives up must not wait for it."""
    done = told(library, fault, 3, environment(library, tmp_path))
    assert done.returncode == -signal.SIGABRT, done.stdout + done.stderr
    assert "all_reduce did not complete on NCCL within 2 s" in done.stderr
    assert _WAITS in done.stderr


def test_a_killed_peer_ends_the_others(library: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = environment(library, tmp_path, WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / "nccl_faults.py", library, "killed", "3"],
            env=variables | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-signal.SIGABRT, -signal.SIGKILL, -signal.SIGABRT], said
    assert all(_WAITS in each for each in (said[0], said[2])), said


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slot_that_is_overwritten_shows(library: str, tmp_path: Path, seed: int) -> None:
    """What verifies is right; the model's race is one."""
    variables = environment(library, tmp_path, COPPICE_EMULATED_GPU_SEED=str(seed))
    assert found(library, "overwritten", 4, variables) == [[True, False]]


@pytest.mark.parametrize("fault", ["outgrown", "symmetric"])
def test_a_window_that_a_graph_uses_outlives_its_successor(library: str, tmp_path: Path, fault: str) -> None:
    """In NCCL's windows, and in torch's symmetric memory by the group that torch's own table has."""
    assert found(library, fault, 3, environment(library, tmp_path)) == [[True] * 6] * 3


def test_closing_with_a_live_graph_ends_in_an_error(library: str, tmp_path: Path) -> None:
    """Ranks of one process are let go of together, by whoever comes last."""
    said = found(library, "live_graph", 2, environment(library, tmp_path))
    failed = [each for each in said if each != "closed"]
    assert failed
    assert all("delete the CUDA graphs that captured calls of this group" in each for each in failed), said


@pytest.mark.parametrize("lacking", [{"NCCL_WIN_ENABLE": "0"}, {"NCCL_CUMEM_ENABLE": "0"}])
def test_a_missing_window_is_told(library: str, tmp_path: Path, lacking: dict[str, str]) -> None:
    """NCCL returns success and none."""
    said = found(library, "opened", 2, environment(library, tmp_path, **lacking))
    assert all(each.startswith("expected a window of symmetric memory, found none") for each in said), said


def test_an_old_driver_is_told(library: str, tmp_path: Path) -> None:
    said = found(library, "opened", 2, environment(library, tmp_path, driver=12040))
    assert all("requires CUDA driver 12.5 or later" in each for each in said), said


def nvcc_and_headers(library: str) -> tuple[str, Path]:
    headers, compiler = Path(library).parent / "include", shutil.which("nvcc")
    if compiler is None or not (headers / "nccl_device.h").is_file():
        pytest.skip("needs nvcc, and NCCL's headers in include/ beside the library")
    return compiler, headers


def exported_kernel(folder: Path, run: Run) -> Path:
    plan, kernel = folder / "plan.json", folder / "plan.cu"
    write_plan(coppice.plan(preset("ring", gpus=4), "all_reduce").plan, plan)
    assert run("export", plan, "--to", "cuda", "--option", "pieces=2", "-o", kernel).code == 0
    return kernel


def test_the_exported_kernel_names_no_deprecated_signal(library: str, tmp_path: Path, run: Run) -> None:
    """NCCL's headers call it deprecated in a comment alone: poisoned, the name cannot be used unseen."""
    compiler, headers = nvcc_and_headers(library)
    text = exported_kernel(tmp_path, run).read_text()
    end = text.rindex("\n#include ") + 1
    end = text.index("\n", end) + 1
    poisoned = f"{text[:end]}#pragma GCC poison ncclGin_SignalInc\n{text[end:]}"
    for name, body, errors in (
        ("mended", poisoned, 0),
        ("before", poisoned.replace("NCCL_VERSION(2, 30, 7)", "NCCL_VERSION(99, 0, 0)"), 1),
    ):
        source = tmp_path / f"{name}.cu"
        source.write_text(body)
        command = [compiler, "-std=c++17", "-arch=sm_90", "-E", f"-I{headers}", "-o", f"{tmp_path}/{name}.ii"]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=500)
        assert done.stderr.count('poisoned "ncclGin_SignalInc"') == errors, done.stderr
        assert (done.returncode != 0) is bool(errors)


def test_nvcc_takes_the_exported_kernel_with_its_headers(library: str, tmp_path: Path, run: Run) -> None:
    """It cannot run here: threads run it in tests/export, where aborting its communicator ends it."""
    compiler, headers = nvcc_and_headers(library)
    kernel = exported_kernel(tmp_path, run)
    command = [
        compiler,
        "-std=c++17",
        "-arch=sm_90",
        "-cubin",
        f"-I{headers}",
        "-o",
        f"{tmp_path}/k",
        str(kernel),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")
