"""The kernel in which switches add and copy: what it does, on threads, and which plans have one."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.put_signal.kernel import check_stars
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from support.paths import ROOT

RANKS = 8


def box(**more: Any) -> Topology:
    """DGX H100s whose NVSwitches add and copy."""
    return preset("dgx-h100", fabric="switch", multicast=True, aggregate=True, **more)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel, compiled for threads."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("multimem")
    path = folder / "kernel.cu"
    coppice.export(coppice.plan(box(), "all_reduce", in_network=True), "cuda", path, name="nvls")
    lines = ['#include "nccl_device_emulation.h"', f'#include "{path}"', "int main(int, char** argument) {"]
    lines.append(
        "  return emulate<int32_t, coppice_nvls::Memory>(argument, coppice_nvls::RANKS, coppice_nvls::SLOTS,"
    )
    lines.append("                                                &coppice_nvls::run<int32_t>);\n}\n")
    (folder / "main.cc").write_text("\n".join(lines))
    flags = ("-std=c++20", "-O0", "-Wall", "-Wextra", "-pthread", "-I", str(ROOT / "tests" / "support"))
    made = subprocess.run(
        [compiler, *flags, "-o", str(folder / "main"), str(folder / "main.cc")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "c++20" in made.stderr or "barrier" in made.stderr:
        pytest.skip("the C++ compiler has no std::barrier")
    assert (made.returncode, made.stderr) == (0, "")
    return folder / "main"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("blocks", "threads", "elements"), [(2, 2, 20), (3, 1, 7), (1, 3, 1)])
def test_results_equal_numpys(
    program: Path, blocks: int, threads: int, elements: int, *, in_place: bool
) -> None:
    given = np.random.default_rng(blocks).integers(-1000, 1000, (2, RANKS, RANKS, elements), dtype=np.int32)
    words = (RANKS, blocks, threads, elements, int(in_place), 2, 1)
    done = subprocess.run(
        [program, *map(str, words)], input=given.tobytes(), capture_output=True, timeout=300, check=True
    )
    found = np.frombuffer(done.stdout, dtype=np.int32).reshape(given.shape)
    assert np.array_equal(found, np.broadcast_to(given.sum(axis=1, keepdims=True), given.shape))


def test_plans_without_one_are_refused() -> None:
    several = coppice.plan(box(boxes=2), "all_reduce", in_network=True)
    with pytest.raises(InputError, match="all ranks meet at one switch"):
        coppice.export(several, "cuda")
    forest = coppice.plan(box(), "all_reduce", in_network=True).plan.forest
    with pytest.raises(InputError, match="found reduce: plan without `in_network`"):
        check_stars(replace(forest, collective=Collective.REDUCE))
    with pytest.raises(InputError, match="all ranks meet at one switch"):
        check_stars(replace(forest, tree_root=forest.tree_root + 1))
    with pytest.raises(InputError, match="switches need neither"):
        coppice.export(coppice.plan(box(), "all_reduce", in_network=True), "cuda", pieces=2)


def test_other_kernels_have_no_such_instructions() -> None:
    text = coppice.export(coppice.plan(preset("dgx-a100"), "all_reduce"), "cuda").text
    assert "#define COPPICE_MULTIMEM 0" in text
    switched = coppice.export(coppice.plan(box(), "all_reduce", in_network=True), "cuda")
    assert "#define COPPICE_MULTIMEM 1" in switched.text
    assert any("sm_90" in note for note in switched.notes)
