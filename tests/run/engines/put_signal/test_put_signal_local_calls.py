"""Copies and sums of a call in one kernel: slot by slot and block by block they are as one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.run.engines.put_signal.kernels import LocalCall, LocalWork

SLOTS, ELEMENTS = 8, 3
SLOT_BYTES = 4 * ELEMENTS
WORK = st.tuples(
    st.integers(0, SLOTS - 3), st.integers(-1, SLOTS - 3), st.integers(0, SLOTS - 3), st.integers(1, 3)
)


def call_of(work: list[tuple[int, int, int, int]]) -> LocalCall:
    """MemoryIntervals of slots as a call."""
    return LocalCall(
        [
            LocalWork(*(at * SLOT_BYTES if at >= 0 else -1 for at in slots), count * SLOT_BYTES)
            for *slots, count in work
        ],
        SLOT_BYTES,
    )


def carry_out(memory: np.ndarray[Any, Any], source: int, addend: int, target: int) -> None:
    """One operation on a slot, or a part of it."""
    memory[target] = memory[source] + (memory[addend] if addend >= 0 else 0)


@given(st.lists(WORK, min_size=1, max_size=10), st.integers(0, 2**32))
def test_groups_and_elements_may_come_in_any_order(work: list[tuple[int, int, int, int]], seed: int) -> None:
    """As on a GPU: every group of operations, and every element of slots, is a thread of its own."""
    wanted = np.arange(SLOTS * ELEMENTS, dtype=np.int64) ** 2
    found = wanted.copy()
    for source, addend, target, count in work:
        for nth in range(count):
            for element in range(ELEMENTS):
                slots = (
                    (each + nth) * ELEMENTS + element if each >= 0 else -1
                    for each in (source, addend, target)
                )
                carry_out(wanted, *slots)
    rows, starts = call_of(work).rows()
    assert len(rows) == sum(count for *_, count in work)
    threads = [(group, element) for group in pairwise(starts.tolist()) for element in range(ELEMENTS)]
    Random(seed).shuffle(threads)
    for (first, last), element in threads:
        for row in rows[first:last].tolist():
            carry_out(found, *(at // 4 + element if at >= 0 else -1 for at in row))
    assert found.tolist() == wanted.tolist()


def test_what_libraries_do_in_one_kernel_needs_no_other() -> None:
    assert not call_of([(0, -1, 1, 1), (2, -1, 3, 1)]).takes_several  # copies
    assert not call_of([(0, 1, 0, 1), (2, 3, 2, 1)]).takes_several  # sums in place
    assert not call_of([(0, 1, 2, 1)]).takes_several  # one sum
    assert call_of([(0, 1, 2, 1), (0, 1, 3, 1)]).takes_several
    assert call_of([(0, 1, 0, 1), (2, -1, 3, 1)]).takes_several
    assert call_of([(0, 1, 0, 1), (0, 2, 0, 1)]).takes_several


PROGRAM = """
import torch
from coppice.run.engines.put_signal.joined import JoinedKernel
from coppice.run.engines.put_signal.kernels import LocalCall, LocalWork

kernel = JoinedKernel(torch.device("cpu"))
for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
    for elements in (1, 5, 1032, 2500):
        slot = elements * kind.itemsize
        given = (torch.arange(9 * elements) % 50).to(kind).view(9, elements)
        work = [(0, 1, 0, 1), (0, 2, 0, 1), (3, 0, 4, 2), (5, -1, 7, 2)]
        wanted = given.clone()
        for source, addend, target, count in work:
            for nth in range(count):
                wanted[target + nth] = wanted[source + nth] + (wanted[addend + nth] if addend >= 0 else 0)
        call = LocalCall([LocalWork(*(a * slot if a >= 0 else -1 for a in w[:3]), w[3] * slot) for w in work], slot)
        kernel.carry_out(given.view(-1).view(torch.uint8), call, kind)
        assert torch.equal(given, wanted), (kind, elements)
print("equal")
"""


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coppice.run.engines.put_signal.joined import _joined_kernel

TARGETS = (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64))
for target in TARGETS:
    for kind, size in (("fp32", 4), ("fp64", 8), ("fp16", 2), ("bf16", 2), ("i32", 4), ("i64", 8)):
        constants = {"UNIT": 16 // size, "SHORT": size == 2, "BLOCK": 4096 // size}
        types = {"window": f"*{kind}", "rows": "*i64", "starts": "*i32", "units": "i32"}
        source = ASTSource(
            _joined_kernel, signature=types | dict.fromkeys(constants, "constexpr"), constexprs=constants,
            attrs={(0,): [["tt.divisibility", 16]]},
        )
        made = triton.compile(source, target=target).asm
        text = made.get("ptx") or made["amdgcn"]
        assert "st.global.v" in text or "global_store_dwordx4" in text, (target, kind)  # 16 bytes at once
print("compiled")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("program", "variables", "said"),
    [
        pytest.param(PROGRAM, {"TRITON_INTERPRET": "1"}, "equal\n", id="interpreted"),
        pytest.param(COMPILED, {}, "compiled\n", id="compiled", marks=pytest.mark.slow),
    ],
)
def test_the_kernel_of_triton(program: str, variables: dict[str, str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == said, done.stderr
