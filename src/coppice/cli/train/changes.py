"""`--what-if` and `--degrade` of `coppice train estimate`: the job after a change, beside the job as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.text import columns, seconds_text

if TYPE_CHECKING:
    from coppice.iteration.job import TrainingJob
    from coppice.iteration.job.what_if import WhatIf, WhatIfRow

WhatIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CHANGE",
        help="Also with nic=x2, nvlink=x0.5, flops=x2, memory=x1.2 or memory=141 (GB), gpu=H200, drain=3 or "
        "drain=node17 (boxes), without=nic:5, slow=nic:5:x0.5, slow=node17:x0.8; may be repeated.",
    ),
]

DegradeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--degrade",
        metavar="NODE=SHARE",
        help="Also with a NIC, GPU or switch of the topology at a share of its rate: box0/nic3=50%; may be repeated.",
    ),
]


def answers(
    job: TrainingJob,
    what_if: Sequence[str] | None,
    degrade: Sequence[str] | None,
) -> list[WhatIf]:
    """What changes: the job as it is first, then each; on boxes of several kinds each kind alone as well.

    Raises:
        InputError: If one is no change, or nothing is left to run on.
    """
    from coppice.iteration.job.what_if import compare_kinds, what_ifs

    kinds = compare_kinds(job)
    changes = [*(what_if or ()), *(f"degrade={each}" for each in degrade or ())]
    found = what_ifs(job, changes) if changes else []
    return found if kinds is None else [*found, kinds]


def answers_record(found: Sequence[WhatIf]) -> dict[str, Any]:
    """The answers as JSON values."""
    if not found:
        return {}
    return {
        "what_if": [
            {
                "change": each.change,
                "best": each.best.way,
                "why_not": each.why_not,
                "ways": [_way_record(row) for row in each.rows],
            }
            for each in found
        ]
    }


def _way_record(row: WhatIfRow) -> dict[str, Any]:
    layout = row.layout
    return {
        "way": row.way,
        "gpus": row.gpus,
        "iteration_seconds": row.seconds,
        "samples_per_second": row.samples_per_second,
        "fits": row.fits,
        "layout": {
            "tp": layout.tensor,
            "pp": layout.pipeline,
            "dp": layout.data,
            "ep": layout.expert,
            "chunks": layout.chunks,
            "micro_batch": layout.micro_batch,
            "global_batch": layout.global_batch,
        },
    }


def answers_table(found: Sequence[WhatIf]) -> list[str]:
    """The answers as lines: time of an iteration, samples a second, and their change.

    Layouts found anew are compared with the healthy job laid out anew, all others with the job as it is.
    """
    if not found:
        return []
    base, anew = found[0].rows[0], found[0].rows[-1] if found[0].change == "none" else found[0].rows[0]
    rows = [("what if", "way", "GPUs", "iteration", "samples/s", "change", "")]
    for each in found:
        name = "as it is" if each.change == "none" else each.change
        for row in each.rows:
            like = anew if row.searched and row is not anew else base
            change = row.samples_per_second / like.samples_per_second - 1
            note = "" if row.fits else "does not fit"
            if len(each.rows) > 1 and row is each.best:
                note = "best" if row.fits else note
            rows.append(
                (
                    name,
                    "" if row.way == "as it is" else row.way,
                    str(row.gpus),
                    seconds_text(row.seconds),
                    f"{row.samples_per_second:.4g}",
                    "" if row is base else f"{change:+.1%}",
                    note,
                )
            )
            name = ""
    lines = columns(rows, "llrrrrl")
    return [*lines, *(each.why_not for each in found if each.why_not)]
