"""Doctor rules for MSCCL++: whether its executor loads an execution plan, and uses it at given sizes.

Complaints name the JSON path of the place. The loader checks few of the rules: most of what it takes without a word
ends in memory that is overwritten, in ranks that wait for ever, or in wrong sums. Kinds of rules:

    J   keys and values of the file
    C   channels, remote buffers, barriers and semaphores
    O   operations
    L   limits of the executor
    Z   chunks and sizes
    P   plans that the preloaded NCCL API library reads by itself
"""

from __future__ import annotations

from pathlib import Path

from coppice.doctor.framework import MSCCLPP, Diagnosis, run
from coppice.doctor.mscclpp import capacity, form, operations  # noqa: F401  (their rules join the table)
from coppice.doctor.mscclpp.capacity import reason_not_used
from coppice.doctor.mscclpp.form import RULES, MscclppPlan
from coppice.doctor.mscclpp.preload import neighbours_of
from coppice.export.mscclpp.document import parse_document
from coppice.export.mscclpp.limits import PRELOAD_DIRECTORY, PRELOAD_SLOTS

__all__ = ["RULES", "diagnose_mscclpp"]


def diagnose_mscclpp(
    data: bytes, *, file: str, ranks: int | None, sizes: tuple[int, ...], beside: bool = False
) -> Diagnosis:
    """Check an execution plan.

    Args:
        data: The bytes.
        file: Name for messages; its last parts tell whether the preloaded library would read it.
        ranks: Ranks of the communicator; None leaves that open.
        sizes: Message sizes M in bytes, as nccl-tests counts them.
        beside: It is the path of a file, and what the library reads beside it is looked at too.
    """
    path = Path(file)
    slot = PRELOAD_SLOTS.get(path.name)
    subject = MscclppPlan(
        file=file,
        document=parse_document(data, file=file),
        ranks=ranks,
        slot=slot,
        preloaded=slot is not None or path.parent.name == PRELOAD_DIRECTORY,
        neighbours=neighbours_of(path) if beside and slot is not None else {},
    )
    return run(
        subject,
        RULES,
        target=MSCCLPP,
        heading="for the executor of MSCCL++ 0.9",
        runtime="the MSCCL++ executor",
        sizes=tuple((size, reason_not_used(subject, size)) for size in sizes),
    )
