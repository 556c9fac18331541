"""The exported kernel: the same source runs on threads with stand-ins for the device calls, and nvcc compiles it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from cli.conftest import Run, run
from coppice.errors import InputError
from coppice.export.put_signal import kernel
from coppice.export.put_signal.standalone.emulator import input_of, output_of, places_of
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset
from support.kernel_emulation import compiled_for_threads
from support.paths import ROOT

__all__ = ["run"]

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
RANKS = 16


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The kernels of two boxes."""
    folder = tmp_path_factory.mktemp("kernels")
    found = {}
    for collective in COLLECTIVES:
        found[collective] = folder / f"{collective}.cu"
        made = coppice.plan(preset("dgx-a100", boxes=2), collective)
        fewer = {"pieces": 2, "staging": 0} if collective == "reduce_scatter" else {}
        coppice.export(made, "cuda", found[collective], name=collective, **fewer)
    return found


@pytest.fixture(scope="module")
def program(kernels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three kernels, compiled for threads; the first argument chooses."""
    body = []
    for number, name in enumerate(kernels):
        space = f"coppice_{name}"
        body.append(f"  if (std::atoi(argument[1]) == {number}) {{")
        body.append(
            f"    return emulate<int64_t, {space}::Memory>(argument + 1, {space}::RANKS, {space}::SLOTS,"
        )
        body.append(f"                                              &{space}::run<int64_t>);\n  }}")
    folder = tmp_path_factory.mktemp("emulation")
    return compiled_for_threads(folder, list(kernels.values()), [*body, "  return 3;"])


def _numbers(text: str, name: str) -> list[int]:
    found = re.search(rf"{name}(?:\[\])? = \{{?([0-9, ]+)", text)
    assert found is not None
    return [int(each) for each in found[1].split(",")]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("near", "blocks", "threads", "elements"), [(8, 2, 2, 5), (4, 3, 1, 4), (16, 1, 2, 1), (1, 1, 1, 3)]
)
@pytest.mark.spread(3)
def test_results_equal_numpys(
    kernels: dict[str, Path],
    program: Path,
    near: int,
    blocks: int,
    threads: int,
    elements: int,
    *,
    in_place: bool,
) -> None:
    """Ranks that share memory, blocks, threads of a block, and elements of a chunk, that are no multiple of blocks."""
    for number, (collective, path) in enumerate(kernels.items()):
        text = path.read_text()
        (chunks,), slots = _numbers(text, "CHUNKS"), _numbers(text, "SLOTS")
        likewise: dict[str, Any] = {"collective": collective, "ranks": RANKS, "root": -1, "chunks": chunks}
        likewise["staging"] = [0] * RANKS
        shared = max(slots[:2])
        given = np.full((2, RANKS, shared if in_place else slots[0], elements), 7, dtype=np.int64)
        for seed, rank in np.ndindex(2, RANKS):
            data = input_of(likewise, rank, elements, seed)
            first = places_of(likewise, rank, in_place=in_place)["input"][1]
            given[seed, rank, first : first + len(data)] = data
        numbers = (number, near, blocks, threads, elements, int(in_place), 2, 1)
        done = subprocess.run(
            [program, *map(str, numbers)], input=given.tobytes(), capture_output=True, timeout=300, check=True
        )
        found = np.frombuffer(done.stdout, dtype=np.int64).reshape(2, RANKS, -1, elements)
        for seed, rank in np.ndindex(2, RANKS):
            wanted = output_of(likewise, rank, elements, seed)
            first = places_of(likewise, rank, in_place=in_place)["output"][1]
            assert np.array_equal(found[seed, rank, first : first + len(wanted)], wanted), (collective, rank)


@pytest.mark.parametrize("near", [16, 8, 1])
def test_a_kernel_ends_when_its_communicator_is_aborted(
    kernels: dict[str, Path], program: Path, near: int
) -> None:
    """A rank never starts; what others wait for within a box or by the network card does not hold them for ever."""
    for number, path in enumerate(kernels.values()):
        slots = _numbers(path.read_text(), "SLOTS")
        given = np.zeros((RANKS, slots[0], 2), dtype=np.int64)
        numbers = (number, near, 2, 2, 2, 0, 1, 1, 3)
        subprocess.run(
            [program, *map(str, numbers)], input=given.tobytes(), capture_output=True, timeout=300, check=True
        )


@pytest.mark.parametrize("version", [(2, 29, 2), (2, 29, 7), (2, 30, 4), (2, 30, 7)])
def test_a_kernel_names_what_its_nccl_has(
    kernels: dict[str, Path], version: tuple[int, int, int], tmp_path: Path
) -> None:
    """Signals that say that they are strong from 2.30.7 on, and the flag of aborted communicators from 2.29.7 on."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    space = "coppice_all_gather"
    lines = ['#include "nccl_device_emulation.h"', f'#include "{kernels["all_gather"]}"']
    lines.append(f"template void {space}::run<float>(ncclDevComm, {space}::Memory, size_t);")
    (tmp_path / "main.cc").write_text("\n".join([*lines, ""]))
    code = version[0] * 10000 + version[1] * 100 + version[2]
    flags = ("-std=c++20", "-fsyntax-only", "-pthread", "-I", str(ROOT / "tests" / "support"))
    done = subprocess.run(
        [compiler, *flags, f"-DNCCL_VERSION_CODE={code}", str(tmp_path / "main.cc")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "c++20" in done.stderr or "barrier" in done.stderr:
        pytest.skip("the C++ compiler has no std::barrier")
    assert (done.returncode, done.stderr) == (0, "")


def _headers() -> Path | None:
    """Where NCCL's headers are: of a package, of NCCL_HOME, or of the system."""
    places = [Path(each, "nvidia", "nccl") for each in sys.path]
    places += [Path(os.environ.get("NCCL_HOME", "/usr")), Path("/usr/local/cuda")]
    return next((each / "include" for each in places if (each / "include" / "nccl_device.h").exists()), None)


@pytest.mark.slow
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nvcc_compiles(kernels: dict[str, Path], collective: str, tmp_path: Path) -> None:
    compiler, headers = shutil.which("nvcc"), _headers()
    if compiler is None or headers is None:
        pytest.skip("needs nvcc and the headers of NCCL 2.28 or later (NCCL_HOME)")
    done = subprocess.run(
        [
            compiler,
            "-std=c++17",
            "-arch=sm_90",
            "-cubin",
            "-I",
            headers,
            "-o",
            tmp_path / "k",
            kernels[collective],
        ],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "k").stat().st_size > 10_000


def test_the_command_writes_it(tmp_path: Path, run: Run) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "plan.cu"
    write_plan(coppice.plan(preset("ring", gpus=4), "all_reduce").plan, plan)
    done = run("export", plan, "--to", "cuda", "--option", "pieces=2", "-o", file)
    assert done.code == 0
    assert "staging memory is" in done.err
    text = file.read_text()
    assert "namespace coppice_all_reduce_ring" in text
    assert "@" not in text
    ranks = text.split("PROGRAM[] = {")[1].split("};")[0].split("// rank ")[1:]
    assert len(ranks) == 4
    assert all("sum(" in each and "put(" in each and "flush()" in each for each in ranks)


def test_a_kernel_has_no_endless_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_MOST_ROWS", 100)
    made = coppice.plan(preset("ring", gpus=4), "all_reduce")
    with pytest.raises(
        InputError, match=r"at most 100 operations of all ranks in a kernel.*use fewer `pieces`"
    ):
        coppice.export(made, "cuda", pieces=9)
