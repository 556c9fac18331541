"""NCCL on the emulated runtime: puts, our engine and scripts over it, and our plug-ins in it (`make test-nccl`)."""

from __future__ import annotations

import json
import os
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
from coppice.tuning.building import NCCL_PLUGINS, build_plugin
from emulated_gpu.box import box_of
from support.paths import TESTS

__all__ = ["run"]

HERE = Path(__file__).parent
LIBRARIES = TESTS.parent / "build" / "emulated_gpu"
SKIPPED = "no NCCL that is linked with the shared CUDA runtime: make test-nccl NCCL=path/to/libnccl.so"
SEEDS = (0, 1, 2)


@pytest.fixture(name="library", scope="session")
def fixture_library() -> str:
    """The library that NCCL= names."""
    path = Path(os.environ.get("COPPICE_TEST_NCCL", ""))
    if not path.is_file() or b"libcudart.so.13" not in path.read_bytes():
        pytest.skip(SKIPPED)
    return str(path)


def environment(
    library: str, folder: Path, *, box: str = "dgx-h100", gpus: int = 4, driver: int = 13000, **more: str
) -> dict[str, str]:
    """The emulated libraries, a box, and nothing of the surroundings that NCCL would listen to."""
    described = folder / f"{box}-{gpus}.box"
    described.write_text(box_of(preset(box), gpus=gpus, driver=driver))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "COPPICE_"))}
    path = f"{LIBRARIES}:{Path(library).parent}"
    return (
        kept
        | {
            "LD_LIBRARY_PATH": path,
            "COPPICE_EMULATED_GPU_BOX": str(described),
            "NCCL_DEBUG": "WARN",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        | more
    )


def asked(library: str, test: str, ranks: int, variables: dict[str, str]) -> tuple[dict[str, Any], str]:
    """What a test of ``nccl_worker.py`` found, and the log of the library."""
    done = subprocess.run(
        [sys.executable, HERE / "nccl_worker.py", library, test, str(ranks)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_boxes_have_the_links_of_their_topology() -> None:
    lines = box_of(preset("dgx-1v")).splitlines()
    assert lines[:2] == ["driver 13000", "gpu 0000:07:00.0 70 85899345920 0 0 Emulated-70"]
    assert sum(line.startswith("link") for line in lines) == 8 * 6
    switched = box_of(preset("dgx-h100"), gpus=2, driver=12040).splitlines()
    assert [line.split()[0] for line in switched] == ["driver", *["gpu"] * 2, *["link"] * 36]
    assert switched[0] == "driver 12040"
    assert switched[-1].endswith(" switch")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("box", "ranks"), [("dgx-h100", 2), ("dgx-1v", 4)])
def test_windows_puts_signals_and_waits(
    library: str, tmp_path: Path, box: str, ranks: int, seed: int
) -> None:
    """Eagerly and as replays, each message with its own values."""
    variables = environment(library, tmp_path, box=box, COPPICE_EMULATED_GPU_SEED=str(seed))
    found, _ = asked(library, "puts", ranks, variables)
    assert found == {"right": [8] * ranks, "of": 8}


@pytest.mark.parametrize("seed", SEEDS)
def test_copy_engines_gather(library: str, tmp_path: Path, seed: int) -> None:
    """In a box without multicast: see README.md."""
    variables = environment(
        library, tmp_path, box="dgx-a100", NCCL_CTA_POLICY="2", COPPICE_EMULATED_GPU_SEED=str(seed)
    )
    found, _ = asked(library, "gathers", 4, variables)
    assert found == {"found": [[1, 2, 3, 4]] * 4}


@pytest.mark.parametrize("seed", SEEDS)
def test_our_engine_puts_through_it(library: str, tmp_path: Path, seed: int) -> None:
    """All-reduce with a window that grows, all-gather of arrays of the host, and replays of a captured all-reduce."""
    variables = environment(library, tmp_path, COPPICE_EMULATED_GPU_SEED=str(seed))
    found, log = asked(library, "engine", 3, variables)
    assert_right(found["right"], log)


def assert_right(found: list[Any], log: str) -> None:
    assert len(found) == 3
    for right in found:
        assert isinstance(right, dict), (right, log)
        assert len(right) == 8
        assert all(right.values()), right


def test_nccl4py_serves_our_engine(library: str, tmp_path: Path) -> None:
    """Each of the folders that COPPICE_TEST_NCCL4PY names: a release of nccl4py with what it needs."""
    folders = [each for each in os.environ.get("COPPICE_TEST_NCCL4PY", "").split(os.pathsep) if each]
    if not folders:
        pytest.skip("no nccl4py: make test-nccl NCCL=path/to/libnccl.so NCCL4PY=FOLDER:FOLDER")
    for folder in folders:
        found, log = asked(library, "nccl4py", 3, environment(library, tmp_path, PYTHONPATH=folder))
        if tuple(map(int, found["release"].split("."))) < (0, 4, 1):
            assert all("expected nccl4py 0.4.1 or later" in each for each in found["right"]), found
        else:
            assert_right(found["right"], log)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_random_programs_are_right_bit_for_bit(library: str, tmp_path: Path, ranks: int) -> None:
    """COPPICE_TEST_NCCL_RUNS of them for all numbers of ranks, in processes of up to 48, with a seed each."""
    number = -(-int(os.environ.get("COPPICE_TEST_NCCL_RUNS", "14")) // 7)
    for seed, first in enumerate(range(0, number, 48)):
        batch = min(48, number - first)
        variables = environment(library, tmp_path, gpus=ranks, COPPICE_EMULATED_GPU_SEED=str(seed))
        done = subprocess.run(
            [sys.executable, HERE / "nccl_programs.py", library, str(ranks), str(first), str(batch)],
            env=variables | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=3600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert (found["faults"], found["programs"]) == ([], batch), done.stderr
        assert found["captured"] >= batch // 2


def test_an_exported_script_runs_over_it(library: str, tmp_path: Path, run: Run) -> None:
    """Ranks are processes: memory goes between them by descriptors."""
    plan, script = tmp_path / "plan.json", tmp_path / "plan.py"
    write_plan(coppice.plan(preset("ring", gpus=3), "all_reduce").plan, plan)
    assert run("export", plan, "--to", "python", "--option", "pieces=2", "-o", script).code == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--engine", "nccl", "--library", library, "--elements", "5", "--runs", "3"]
    variables = environment(library, tmp_path, WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE / "nccl_script.py", script, *options],
            env=variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 3, said


def test_our_plugins_are_loaded_and_asked(library: str, tmp_path: Path) -> None:
    """The tuner decides by its table, the environment plug-in gives settings, net and CollNet come up."""
    built = {kind: build_plugin(tmp_path / plugin.file, kind=kind) for kind, plugin in NCCL_PLUGINS.items()}
    table = tmp_path / "table.csv"
    table.write_text("allreduce,0,1073741824,tree,simple,2,1,-1,-1,-1\n")
    settings = tmp_path / "settings"
    settings.write_text("NCCL_MIN_NCHANNELS=2\n")
    variables = environment(
        library,
        tmp_path,
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="INIT,ENV,TUNING,NET",
        NCCL_COLLNET_ENABLE="1",
        COPPICE_TUNER_TABLE=str(table),
        COPPICE_NCCL_SETTINGS=str(settings),
    )
    variables |= {plugin.variable: str(built[kind]) for kind, plugin in NCCL_PLUGINS.items()}
    found, log = asked(library, "reduces", 2, variables)
    assert found == {"found": [True, True]}
    for words in (
        "ENV/Plugin: Using Coppice",
        "TUNER/Plugin: Using Coppice",
        "Loaded net plugin Coppice",
        "Loaded collnet plugin Coppice",
        "Rank 1: 1 CollNet devices",
        "NCCL_MIN_NCHANNELS set by environment to 2",
        "AllReduce: 262144 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..1}",  # the table's line
    ):
        assert words in log, (words, log)
