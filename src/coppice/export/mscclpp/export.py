"""A plan as an execution plan of MSCCL++: made to fit its executor, with what its user must know."""

from __future__ import annotations

from collections.abc import Sequence

from coppice.bounds.describe import plural
from coppice.errors import InputError
from coppice.export.exported import Exported
from coppice.export.mscclpp.limits import LIMITS, largest_message, size_unit
from coppice.export.mscclpp.program import MscclppOptions, one_sided_for
from coppice.export.mscclpp.writer import mscclpp_json
from coppice.program.one_sided.program import OneSidedProgram
from coppice.schedule.plan import Plan
from coppice.text import parse_size, short_size

__all__ = ["export_mscclpp_json"]


def export_mscclpp_json(
    plan: Plan,
    *,
    instances: int | None = None,
    size: str | Sequence[int] | None = None,
    name: str | None = None,
    in_place: bool = False,
    out_of_place: bool = False,
    blocks: int | None = None,
    threads: int = LIMITS.threads,
) -> Exported:
    """Write a plan for the executor of MSCCL++.

    Args:
        plan: The plan.
        instances: Every chunk is cut into so many, which go side by side.
        size: Messages that are to use it: ``all``, ``LOW:HIGH``, or the smallest and the largest in bytes.
        name: Label.
        in_place: Input and output share memory; neither is in place wherever the collective can be.
        out_of_place: They do not.
        blocks: Most thread blocks of a GPU; None is 64.
        threads: Threads of a thread block.

    Raises:
        CheckError: If it does not fit the executor.
        InputError: If an option or the plan cannot be used.
    """
    if in_place and out_of_place:
        msg = "an execution plan is either for calls in place or for the others: leave one of the two options out."
        raise InputError(msg)
    low, high = _size_range(size)
    form = MscclppOptions(
        in_place=True if in_place else False if out_of_place else None,
        instances=instances or 1,
        blocks=blocks,
        threads=threads,
        min_bytes=low,
        max_bytes=high,
        name=name or f"{plan.problem.collective}-{plan.topology.name}",
    )
    program = one_sided_for(plan.body, form)
    return Exported(text=mscclpp_json(program), notes=_notes(program), suffix=".json")


def _size_range(size: str | Sequence[int] | None) -> tuple[int, int | None]:
    """Smallest and largest size."""
    if size is None or size == "all":
        return 0, None
    if isinstance(size, str):
        low, colon, high = size.partition(":")
        ends = [parse_size(end, option="`size`") for end in (low, high)] if colon else []
    else:
        ends = [*size]
    if len(ends) != 2:
        msg = f"expected `size=LOW:HIGH` such as 1M:1G, or all, found {size!r}."
        raise InputError(msg)
    smallest, largest = ends
    if largest < max(smallest, 1):
        msg = f"expected `size` to rise from LOW to HIGH, found {size!r}."
        raise InputError(msg)
    return smallest, largest


def _notes(program: OneSidedProgram) -> tuple[str, ...]:
    ports = sum(end.port for end in program.channels) // 2
    ways = f"{plural((len(program.channels) // 2) - ports, 'memory channel')} and {plural(ports, 'port channel')}"
    largest = largest_message(program)
    upper = largest if program.max_bytes is None else min(program.max_bytes, largest)
    place = "in place" if program.in_place else "out of place"
    blocks, most = plural(program.most_blocks, "thread block"), program.most_operations
    chunks, unit = plural(program.num_chunks, "chunk"), short_size(size_unit(program))
    return (
        f"for the executor of MSCCL++ 0.9; calls {place} use it.",
        f"a GPU needs {blocks}, with {most} of {LIMITS.operations} operations in the fullest; {ways} in all.",
        f"{chunks}: messages use it where their size is a multiple of {unit}, up to {short_size(upper)}.",
        "buffers must begin at the same distance from the start of their allocation at every rank.",
        "`coppice doctor FILE --target mscclpp` tells more.",
    )
