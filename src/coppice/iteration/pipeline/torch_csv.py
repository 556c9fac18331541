"""Pipeline orders in PyTorch's CSV format: a row per rank, cells such as ``2F0``.

The format is that of ``torch.distributed.pipelining`` (``_load_csv`` and ``_dump_csv`` of its schedules, compute only):
stage, type (F, I, W, or B for both parts), micro-batch. An empty cell is a wait. ``(0F7;7B3)OVERLAP_F_B`` holds two
passes that run at once. What is written is checked for what the runtime does not: see
:func:`coppice.iteration.pipeline.runnable.check_runnable`.
"""

from __future__ import annotations

import csv
import io
import itertools
import re

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.runnable import check_runnable, turns

_CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_BOTH = re.compile(r"\((.*)\)OVERLAP_F_B")


def order_csv(order: PipelineOrder) -> str:
    """Encode an order.

    Examples:
        >>> from coppice.iteration.pipeline.orders import gpipe
        >>> print(order_csv(gpipe(2, 2)), end="")
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1

        Passes that run at once share a cell:

        >>> from coppice.iteration.pipeline.orders import dual_pipe_v
        >>> print(order_csv(dual_pipe_v(1, 2)), end="")
        0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1
    """
    check_runnable(order)
    text = io.StringIO()
    rows = [
        [f"({';'.join(map(str, turn))})OVERLAP_F_B" if len(turn) > 1 else str(turn[0]) for turn in program]
        for program in turns(order)
    ]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_order_csv(text: str, *, file: str = "the pipeline order") -> PipelineOrder:
    """Decode an order.

    Examples:
        >>> read_order_csv("0F0,0F1,0B0,0B1").micro_batches
        2
    """
    devices: list[tuple[StagePass, ...]] = []
    co_scheduled: set[tuple[StagePass, StagePass]] = set()
    for line, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        program: list[StagePass] = []
        for column, cell in enumerate(row, start=1):
            both = _BOTH.fullmatch(cell.strip())
            words = both[1].split(";") if both else [cell.strip()]
            for word in words:
                if not word:
                    continue
                found = _CELL.fullmatch(word)
                if found is None:
                    raise InputError(
                        f"expected a pass such as 2F0 (stage, one of F, B, I and W, micro-batch), found {word!r} at "
                        f"{file}:{line}, cell {column}."
                    )
                program.append(StagePass(int(found[1]), Work(found[2]), int(found[3])))
            if both and len(words) > 1:
                co_scheduled.update(itertools.pairwise(program[-len(words) :]))
        devices.append(tuple(program))
    every = [each for program in devices for each in program]
    if not every:
        raise InputError(f"expected a row of passes for each device in {file}, found none.")
    try:
        return PipelineOrder(
            devices=tuple(devices),
            stages=1 + max(each.stage for each in every),
            micro_batches=1 + max(each.micro_batch for each in every),
            co_scheduled=frozenset(co_scheduled),
        )
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
