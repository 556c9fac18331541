"""One Triton kernel for all copies and reductions of a call.

A program of the kernel has the same elements of all slots that depend on each other, and does their operations one
after the other. What it has stored it reads again after a barrier, since another of its threads may have it. Sums of
16-bit numbers are rounded after each addition, as torch does.

The kernel is tried on a device before it is used there: where there is no Triton, or one that does not do it right,
torch's own kernels follow each other (:mod:`.kernels`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from coppice.run.engines.put_signal.kernels import LocalCall, LocalWork
from coppice.run.errors import RunError

_BLOCK_BYTES = 4096
_ALIGNED_BYTES = 16
"""What a thread reads at once, where slots are multiples of it."""
_SHORT_BYTES = 2


# Triton reads annotations as part of the kernel, so that only constants have any.
@triton.jit  # type: ignore[untyped-decorator]
def _joined_kernel(  # type: ignore[no-untyped-def]
    window, rows, starts, units,  # noqa: ANN001
    UNIT: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
) -> None:  # fmt: skip
    """A group of operations on a block of elements; rows and the length of a slot are in units of UNIT elements."""
    group = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < units * UNIT
    for row in range(tl.load(starts + group), tl.load(starts + group + 1)):
        source = tl.multiple_of(tl.load(rows + 3 * row) * UNIT, UNIT)
        addend = tl.load(rows + 3 * row + 1)
        target = tl.multiple_of(tl.load(rows + 3 * row + 2) * UNIT, UNIT)
        value = tl.load(window + source + at, mask=inside)
        if addend >= 0:
            other = tl.load(window + tl.multiple_of(addend * UNIT, UNIT) + at, mask=inside)
            if SHORT:
                value = (value.to(tl.float32) + other.to(tl.float32)).to(window.dtype.element_ty)
            else:
                value += other
        tl.store(window + target + at, value, mask=inside)
        tl.debug_barrier()


class JoinedKernel:
    """The kernel compiled and tested on one device.

    Args:
        device: Of torch.

    Raises:
        RunError: If it does not do there what it should.
    """

    def __init__(self, device: Any) -> None:
        elements = 3 * _BLOCK_BYTES // 4  # a block and a half
        window = (torch.arange(6 * elements, device=device) % 50).to(torch.bfloat16).view(6, elements)
        wanted = window.clone()
        wanted[0] += wanted[1]
        wanted[3] = wanted[2]
        wanted[5] = wanted[3] + wanted[0]
        slot = window[0].nbytes
        work = ((0, slot, 0), (2 * slot, -1, 3 * slot), (3 * slot, 0, 5 * slot))
        call = LocalCall([LocalWork(*each, slot) for each in work], slot)
        self.carry_out(window.view(-1).view(torch.uint8), call, torch.bfloat16)
        if not torch.equal(window, wanted):
            raise RunError(
                f"expected a kernel of Triton to add on {device}, found other sums: update torch and Triton there."
            )

    def carry_out(self, window: Any, call: LocalCall, kind: Any) -> None:
        """Copy and reduce in a window of bytes, on torch's current stream.

        Args:
            call: What is to be done; its table is kept on the window's device.
        """
        unit = _ALIGNED_BYTES if call.slot_bytes % _ALIGNED_BYTES == 0 else kind.itemsize
        if call.placed is None:
            rows, starts = call.rows()
            table = np.where(rows < 0, -1, rows // unit)
            call.placed = [torch.from_numpy(each).to(window.device) for each in (table.reshape(-1), starts)]
        rows, starts = call.placed
        grid = (len(starts) - 1, -(-call.slot_bytes // _BLOCK_BYTES))
        short = kind.is_floating_point and kind.itemsize == _SHORT_BYTES
        _joined_kernel[grid](
            window[: window.numel() // kind.itemsize * kind.itemsize].view(kind), rows, starts, call.slot_bytes // unit,
            UNIT=unit // kind.itemsize, SHORT=short, BLOCK=_BLOCK_BYTES // kind.itemsize,
        )  # fmt: skip
