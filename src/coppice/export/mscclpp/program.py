"""Lower a plan to a one-sided program that fits the MSCCL++ executor, and export its execution plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.export.formats import Excess, Exported, MscclppJsonOptions, SizeSpan
from coppice.export.mscclpp.limits import (
    LIMITS,
    PRELOAD_DIRECTORY,
    PRELOAD_SLOTS,
    block_excesses,
    largest_message,
    size_unit,
    slots_for,
)
from coppice.export.mscclpp.writer import mscclpp_json
from coppice.program.dialects.puts.lower import OneSidedLowering, lower_one_sided
from coppice.program.dialects.puts.program import OneSidedProgram
from coppice.program.dialects.puts.verify import verify_one_sided
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.text import parse_size, plural, short_size

MOST_BLOCKS = 64
"""Thread blocks of a GPU where none are asked for: all must run at once, each on a multiprocessor of its own."""

_FIRST_TRIED = 16
_LAST_TRIED = 4096


@dataclass(frozen=True, kw_only=True)
class MscclppOptions:
    """Options of an execution plan."""

    in_place: bool | None = None  # Input and output share memory; None means yes wherever the collective can
    instances: int = 1  # Every chunk is cut into this many, which go side by side
    blocks: int | None = None  # Most thread blocks of a GPU; None means 64
    threads: int = 1024  # Threads of a thread block, a multiple of 32 up to 1024
    # Smallest message that is to use it: bytes of the output in an all-gather, else of the input
    min_bytes: int = 0
    max_bytes: int | None = None  # Largest; None means the largest that the executor can take
    name: str = "coppice"  # Label

    def __post_init__(self) -> None:
        if self.blocks is not None and self.blocks < 1:
            raise InputError(f"expected 1 thread block or more, found {self.blocks}.")
        if not 32 <= self.threads <= LIMITS.threads or self.threads % 32:
            raise InputError(
                f"expected a multiple of 32 threads up to {LIMITS.threads}, found {self.threads}."
            )


def one_sided_for(plan: Schedule | Forest, form: MscclppOptions | None = None) -> OneSidedProgram:
    """Lower a plan for the MSCCL++ executor, and verify the program.

    Args:
        form: What it is to be like.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)).plan
        >>> program = one_sided_for(made.body)
        >>> program.most_operations <= 64, any(end.port for end in program.channels)
        (True, True)
    """
    form = form or MscclppOptions()
    most = form.blocks or MOST_BLOCKS
    lowering = lower_one_sided(plan, in_place=form.in_place, instances=form.instances)
    program, excess = _fitting(lowering, form, most)
    if program is None:
        raise CheckError(_refusal(lowering, plan, form, most, excess))
    unit = size_unit(program)
    largest = largest_message(program) // unit * unit
    if largest < max(form.min_bytes, unit):
        raise CheckError(
            f"the plan does not fit the MSCCL++ executor: with {program.num_chunks:,} chunks and "
            f"{max(program.scratch):,} of scratch memory it takes messages up to {largest:,} bytes, found a smallest "
            f"size of {form.min_bytes:,}: plan fewer trees (`trees`)."
        )
    verify_one_sided(program).require_ok()
    return program


def _fitting(
    lowering: OneSidedLowering, form: MscclppOptions, most: int
) -> tuple[OneSidedProgram | None, Excess | None]:
    """The program with the fewest thread blocks above a usual number that fits, or the least excess."""
    colors = min(_FIRST_TRIED * form.instances, most, lowering.most_colors)
    least: Excess | None = None
    while True:
        program = lowering.program(
            colors,
            name=form.name,
            threads=form.threads,
            min_bytes=form.min_bytes,
            max_bytes=form.max_bytes,
        )
        found = block_excesses(program)
        if not found:
            return program, None
        if least is None or found[0].found - found[0].allowed < least.found - least.allowed:
            least = found[0]
        last = min(most, lowering.most_colors)
        if colors >= last:
            return None, least
        colors = min(last, max(colors + 1, colors * 5 // 4))


def _refusal(
    lowering: OneSidedLowering,
    plan: Schedule | Forest,
    form: MscclppOptions,
    most: int,
    excess: Excess | None,
) -> str:
    words = excess.sentence if excess is not None else "too much in a thread block"
    head = f"the plan does not fit the MSCCL++ executor with {plural(most, 'thread block')} a GPU: it has {words}"
    if most < lowering.most_colors:
        wider, _ = _fitting(lowering, form, min(lowering.most_colors, _LAST_TRIED))
        if wider is not None:
            return (
                f"{head}: it fits with {wider.most_blocks} (`blocks={wider.most_blocks}`), if the GPU has as "
                "many multiprocessors."
            )
    advice = (
        "plan for fewer ranks at a time, in levels"
        if plan.collective is Collective.ALL_TO_ALL
        else "plan fewer trees (`trees`), or trees with fewer children, such as a ring"
    )
    return f"{head}: {advice}."


def export_mscclpp_json(plan: Plan, options: MscclppJsonOptions, *, span: SizeSpan | None = None) -> Exported:
    """Export a plan for the executor of MSCCL++."""
    in_place = options.in_place
    if in_place and options.out_of_place:
        raise InputError(
            "an execution plan is either for calls in place or for the others: leave one of the two options out."
        )
    low, high = _size_range(options.size) if span is None else (span.first_bytes, span.last_bytes)
    form = MscclppOptions(
        in_place=True if in_place else False if options.out_of_place else None,
        instances=options.instances or 1,
        blocks=options.blocks,
        threads=options.threads,
        min_bytes=low,
        max_bytes=high,
        name=options.name or f"{plan.problem.collective}-{plan.topology.name}",
    )
    program = one_sided_for(plan.body, form)
    return Exported(text=mscclpp_json(program), notes=_notes(program), suffix=".json", read_as="mscclpp")


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
        raise InputError(f"expected `size=LOW:HIGH` such as 1M:1G, or all, found {size!r}.")
    smallest, largest = ends
    if largest < max(smallest, 1):
        raise InputError(f"expected `size` to rise from LOW to HIGH, found {size!r}.")
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
        *(
            f"the preloaded NCCL API library reads it as {PRELOAD_DIRECTORY}/{slot} below MSCCLPP_CACHE_DIR "
            f"({PRELOAD_SLOTS[slot]})."
            for slot in slots_for(program)[:1]
        ),
        "`coppice doctor FILE --target mscclpp` tells more.",
    )
