"""Doctor rules for MSCCL XML: whether a runtime loads a file, and uses it at given sizes.

Four kinds of rules:

    text rules   (X)         what the hand-written XML readers of the runtimes trip over
    load rules   (A, B, S)   names, numbers and limits that the loaders check, or fail to check and then suffer from
    use rules    (U)         whether a call of this size, on this many ranks, in place or not, would take the file
    hang rules   (H)         at which sizes ranks would wait for each other for ever
"""

from __future__ import annotations

from coppice.doctor.framework import Diagnosis, run
from coppice.doctor.msccl import algo, hangs, steps, text  # noqa: F401  (their rules join the table)
from coppice.doctor.msccl.hangs import reason_not_run
from coppice.doctor.msccl.text import RULES, MscclFile
from coppice.doctor.msccl.use import reason_not_used
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.targets import target_named

__all__ = ["RULES", "diagnose_msccl"]


def diagnose_msccl(
    data: bytes, target: str, *, file: str, ranks: int | None, sizes: tuple[int, ...]
) -> Diagnosis:
    """Check an MSCCL XML file.

    Args:
        data: The bytes.
        ranks: Ranks of the communicator; None leaves that open.
        sizes: Message sizes M in bytes, as nccl-tests counts them.
    """
    runtime = target_named(target)
    document = parse_document(data, file=file)
    subject = MscclFile(file=file, data=data, document=document, target=runtime, ranks=ranks, sizes=sizes)
    return run(
        subject,
        RULES,
        target=target,
        heading=f"for {runtime.title}",
        runtime=runtime.title,
        sizes=tuple(
            (size, reason_not_used(subject, size) or reason_not_run(subject, size)) for size in sizes
        ),
    )
