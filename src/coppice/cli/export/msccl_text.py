"""What `coppice export --to msccl-xml` says of a file: limits, sizes, trees, and what a thread block has to carry."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from coppice.fitting.msccl.load import block_gb_per_s, busiest_gb_per_s
from coppice.fitting.msccl.size_range import Race, WinningRange
from coppice.fitting.msccl.targets import ELEMENT_BYTES, target_named
from coppice.fitting.msccl.trees import Fitted
from coppice.program.two_sided.nics import kept_share
from coppice.program.two_sided.program import Program
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.text import percent_text, plural, rate_text, short_size

__all__ = [
    "instances_note",
    "load_note",
    "nic_note",
    "program_notes",
    "range_note",
    "size_notes",
    "trees_note",
]


def program_notes(program: Program, target: str) -> list[str]:
    """Who reads the file, what it needs, and how it is used."""
    chosen = target_named(target)
    places = [
        word
        for word, meant in (("in place", program.in_place), ("out of place", program.out_of_place))
        if meant
    ]
    figures = ", ".join(
        [
            f"{plural(program.most_blocks, 'thread block')} of {chosen.max_blocks}",
            f"{plural(program.num_channels, 'channel')} of {chosen.max_channels}",
            f"{plural(program.most_steps, 'step')} of {chosen.max_steps}",
        ]
    )
    unit = short_size(program.num_chunks * ELEMENT_BYTES)
    return [
        f"for {chosen.versions}; calls {' and '.join(places)} use it.",
        f"a GPU needs {figures} in its fullest thread block.",
        f"{plural(program.num_chunks, 'chunk')}: messages of float32 use it where their size is a multiple of {unit}.",
        f"to use it: {chosen.switches}; `coppice doctor FILE --target {target}` tells more.",
    ]


def trees_note(found: Fitted) -> str:
    """With how many trees the problem was planned again, and what that loses; empty where it was not."""
    if found.trees is None:
        return ""
    loss = ""
    if found.loss is not None:
        loss = "the optimum" if not found.loss else f"{percent_text(found.loss)} below the optimum"
        loss = f": {loss}"
    why = f", since {found.reason.rstrip('.')}" if found.reason else ""
    keep = (
        " (`--trees plan` keeps those of the plan)"
        if found.reason and found.given_fits and found.loss
        else ""
    )
    return f"planned again with {plural(found.trees, 'tree')} per root{why}{loss}{keep}."


def size_notes(found: Fitted, wanted: Sequence[int]) -> list[str]:
    """Sizes at which messages do not take the file."""
    if not found.left_out:
        return []
    unit = short_size(found.program.num_chunks * ELEMENT_BYTES)
    span = f"{plural(len(wanted), 'size')} from {short_size(wanted[0])} to {short_size(wanted[-1])}"
    return [
        f"at {len(found.left_out)} of {span} it is not used: {short_size(found.left_out[0])} is no multiple of {unit}."
    ]


def load_note(found: Fitted, target: str) -> str:
    """How many instances carry the plan's rate; empty where one does, or nothing is known of the GPUs."""
    needed, carried = _load(found, found.program)
    if carried is None or needed <= carried:
        return ""
    chosen = target_named(target)
    program = found.program
    many = ceil(needed / carried)
    room = min(chosen.max_blocks // program.most_blocks, chosen.max_channels // program.num_channels)
    advice = (
        f"`--instances {min(many, room)}` spreads it" if room > 1 else "there is no room for more instances"
    )
    return (
        f"at the plan's rate the busiest thread block sends {rate_text(round(needed, 1))} GB/s, and one sends about "
        f"{carried:g} with {program.protocol}: {advice}."
    )


def instances_note(found: Fitted, alone: Program | None, instances: int) -> str:
    """What instances cost and bring, in one line.

    Args:
        found: The plan and its program.
        alone: The program of one instance, or None where that does not fit.
        instances: How many there are.
    """
    program = found.program
    needed, carried = _load(found, program)
    cost = f"{plural(program.most_blocks, 'thread block')} and {plural(program.num_channels, 'channel')} of a GPU"
    gain = f"the busiest thread block sends {rate_text(round(needed, 1))} GB/s at the plan's rate"
    if alone is not None:
        before, _ = _load(found, alone)
        cost += f" instead of {alone.most_blocks:,} and {alone.num_channels:,}"
        gain += f" instead of {rate_text(round(before, 1))}"
    known = "" if carried is None else f" (one sends about {carried:g} with {program.protocol})"
    return f"{instances} instances: {cost}; {gain}{known}."


def nic_note(found: Fitted, target: str) -> str:
    """Whether transfers leave by the NICs that the plan names; empty where no GPU has a choice."""
    body = found.plan.body
    kept = kept_share(found.program, lower(body) if isinstance(body, Forest) else body)
    if kept is None:
        return ""
    chosen = target_named(target)
    if not chosen.by_nic:
        return f"{chosen.title} sends by one NIC of a GPU whatever the channel: those that the plan names are not kept."
    rule = "a GPU with n NICs to itself sends by NIC c mod n on channel c"
    if kept == 1:
        return f"every NIC carries what the plan says: {rule}."
    return f"{percent_text(kept)} of what leaves by a NIC leaves by the one that the plan names: {rule}."


def _load(found: Fitted, program: Program) -> tuple[Fraction, float | None]:
    """What the busiest thread block of a program must send, and what one can, in GB/s."""
    topology = found.plan.topology
    return busiest_gb_per_s(program, found.plan.algbw_gb_per_s), block_gb_per_s(topology, program.protocol)


def range_note(chosen: WinningRange | None) -> str:
    """Which sizes use the file, and the figures that say so."""
    if chosen is None:
        return (
            "all sizes use it, although by simulation the library is as fast at every size from 1K to 4G: measure "
            "before you use it, or set `--size`."
        )
    span = _span(chosen)
    inside = chosen.inside
    figures = [f"at {_race(inside[0])}"]
    if len(inside) > 1:
        figures.append(f"at {_race(max(inside, key=lambda race: race.gain))}")
    worst = min(inside, key=lambda race: race.gain)
    if not worst.won:
        figures.append(f"not quite at {_race(worst)}")
    outside = [f"but at {_race(race)}" for race in (chosen.below, chosen.above) if race is not None]
    words = ", ".join(dict.fromkeys([*figures, *outside]))
    return f"{span} use it, by simulation: {words}; `--size all` keeps all sizes."


def _span(chosen: WinningRange) -> str:
    low, high = chosen.min_bytes, chosen.max_bytes
    if high is None:
        return f"messages of {short_size(low)} and more" if low else "all sizes"
    return (
        f"messages of {short_size(low)} to {short_size(high)}"
        if low
        else f"messages of up to {short_size(high)}"
    )


def _race(race: Race) -> str:
    """``1M 28 us against 57 us of nccl-ring with LL``."""
    return f"{short_size(race.size_bytes)} {_us(race.plan_us)} against {_us(race.rival_us)} of {race.rival}"


def _us(time_us: float) -> str:
    return f"{time_us:.3g} us" if time_us < 1000 else f"{time_us / 1000:.3g} ms"
