"""The kernel in which switches add and copy: what it does, on threads, and which plans have one."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.put_signal.kernel import check_stars
from coppice.export.put_signal.nvrtc import mended_header, write_nvrtc_headers
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from support.kernel_emulation import compiled_for_threads

RANKS = 8


def box(**more: Any) -> Topology:
    """DGX H100s whose NVSwitches add and copy."""
    return preset("dgx-h100", fabric="switch", multicast=True, aggregate=True, **more)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel, compiled for threads."""
    folder = tmp_path_factory.mktemp("multimem")
    path = folder / "kernel.cu"
    coppice.export(coppice.plan(box(), "all_reduce", in_network=True), "cuda", path, name="nvls")
    call = "emulate<int32_t, coppice_nvls::Memory>(argument, coppice_nvls::RANKS, coppice_nvls::SLOTS,"
    return compiled_for_threads(folder, [path], [f"  return {call} &coppice_nvls::run<int32_t>);"])


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


@pytest.mark.parametrize(
    ("header", "mended"),
    [
        (
            "struct {\n  int a : 3;\n} __attribute__((packed)) b;",
            "struct __attribute__((packed)) {\n  int a : 3;\n} b;",
        ),
        (
            "typedef union u {\n struct { int a; } b;\n} __attribute__((__packed__)) __attribute__((aligned(4))) u_t;",
            "typedef union __attribute__((__packed__)) __attribute__((aligned(4))) u {\n struct { int a; } b;\n} u_t;",
        ),
        (
            "struct o { struct { char a; } __attribute__((packed)) b; } __attribute__((packed));",
            "struct __attribute__((packed)) o { struct __attribute__((packed)) { char a; } b; } ;",
        ),
        ("struct __attribute__((packed)) a { char b; };", None),
        ("void run() { } __attribute__((noinline)) void other();", None),
        ("} __attribute__((packed)) a;", None),
        ("C __host__ int run();", "C int run();"),
        ("uint64_t part[sizeof(T) / 8];", "uint64_t part[(sizeof(T) + 8 - 1) / 8];"),
        ("__host__ __device__ int run();\n__device__ __host__ int other();", None),
    ],
)
def test_what_nvrtc_does_not_take_is_mended(header: str, mended: str | None) -> None:
    assert mended_header(header) == (header if mended is None else mended)


def test_headers_are_written(tmp_path: Path) -> None:
    nccl, folder = tmp_path / "nccl", tmp_path / "made"
    (nccl / "nccl_device" / "gin").mkdir(parents=True)
    (nccl / "nccl.h").write_text("#include <limits.h>\n")
    (nccl / "nccl_device" / "gin" / "card.cuh").write_text("struct { char a; } __attribute__((packed)) b;\n")
    write_nvrtc_headers(nccl, folder)
    assert (folder / "nccl.h").read_text().endswith("#endif\n#include <limits.h>\n")
    assert "packed)) {" in (folder / "nccl_device" / "gin" / "card.cuh").read_text()
    for name in ("limits.h", "linux/types.h", "cstdint"):
        assert (folder / name).read_text().startswith("#pragma once\n")
    with pytest.raises(InputError, match=r"expected nccl\.h and nccl_device of NCCL"):
        write_nvrtc_headers(folder / "nccl_device", tmp_path / "other")
    with pytest.raises(InputError, match="cannot make the folder"):
        write_nvrtc_headers(nccl, folder / "nccl.h")


def _packages(*names: str) -> Iterator[Path]:
    """Files of NVIDIA's packages, in the folders of any release of CUDA, or of the toolkit."""
    roots = [Path(each, "nvidia") for each in sys.path] + [
        Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    ]
    for root in roots:
        for name in names:
            yield from sorted(root.glob(f"*/{name}"))
            yield from sorted(root.glob(name))


def _found(*names: str) -> Path:
    """The first of some files.

    Raises:
        Skipped: If there is none.
    """
    places = [Path(os.environ.get("NCCL_HOME", "/usr"), name) for name in names]
    found = next((path for path in (*_packages(*names), *places) if path.exists()), None)
    if found is None:
        pytest.skip(f"needs {names[0]}, of NVIDIA's packages (nvrtc, runtime, cccl, nccl) or the toolkit")
    return found


def compiled(source: str, options: list[str]) -> tuple[bytes, str]:
    """Machine code and log of NVRTC."""
    library = ctypes.CDLL(str(_found("lib/libnvrtc.so.1[2-9]", "lib64/libnvrtc.so")))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"plan.cu", 0, None, None)
    assert made == 0
    words = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    result = library.nvrtcCompileProgram(program, len(options), words)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()[:2000]
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    return code.raw, log.value.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "switches"),
    [("all_gather", False), ("reduce_scatter", False), ("all_reduce", False), ("all_reduce", True)],
)
def test_nvrtc_compiles(collective: str, tmp_path: Path, *, switches: bool) -> None:
    nccl = _found("include/nccl_device.h").parent
    runtime = _found("include/cuda_runtime.h").parent
    libraries = {_found("include/cuda/atomic", "include/cccl/cuda/atomic").parent.parent, runtime}
    write_nvrtc_headers(nccl, tmp_path / "headers")
    box = preset("dgx-h100", fabric="switch", multicast=True, aggregate=True)
    topology = box if switches else preset("dgx-a100", boxes=2)
    made = coppice.plan(topology, collective, in_network=switches)
    text = coppice.export(made, "cuda", tmp_path / "plan.cu", name=collective).text
    folders = [f"-I{each}" for each in (tmp_path / "headers", *libraries)]
    code, log = compiled(text, ["-arch=sm_90", "-std=c++17", "-default-device", *folders])
    assert code.startswith(b"\x7fELF")
    assert re.search(rb"coppice_%b\d+runIfE" % collective.encode(), code)
    assert "attribute" not in log  # one that is left aside changes the layout of a structure
