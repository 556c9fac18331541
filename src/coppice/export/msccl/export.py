"""Export a plan as MSCCL XML, fitted to its target, with the size range in which to use it.

An MSCCL XML file of another target is taken as well: it is verified, and written in the words of the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np
from msgspec.structs import asdict

from coppice.errors import CheckError, InputError
from coppice.export.formats import PROTOCOLS, Exported, MscclXmlOptions, SizeSpan
from coppice.export.msccl.document import is_xml, parse_document
from coppice.export.msccl.program import CallKind, MscclOptions, rough_program
from coppice.export.msccl.reader import judge_document
from coppice.export.msccl.targets import TARGETS, MscclTarget, target_named
from coppice.export.msccl.writer import msccl_xml
from coppice.files import file_name
from coppice.fitting.size_range import (
    MOST_RANKS,
    Matchup,
    ModelChoice,
    WinningRange,
    block_gb_per_s,
    busiest_gb_per_s,
    model_name,
    winning_range,
)
from coppice.fitting.trees import ELEMENT_BYTES, FittedPlan, fit_trees
from coppice.program.dialects.thread_blocks.cutting import most_in_passes
from coppice.program.dialects.thread_blocks.nics import kept_share
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.races import settled
from coppice.program.dialects.thread_blocks.unroll import early_sends
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.files.plan_file import decode_plan, plan_bytes
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.text import parse_size, parse_sizes, percent_text, plural, rate_text, short_size

USUAL_SIZES = tuple(2**exponent for exponent in range(20, 31))
"""Sizes that chunks should divide where none are given: 1M to 1G, doubling."""


@dataclass(frozen=True, kw_only=True)
class WantedSizes:
    """Message sizes that are to use a file."""

    found: bool = False  # Nobody said: the range is to be found by simulation
    low: int = 0  # Smallest size that takes the file
    high: int | None = None  # Largest, or None for no limit
    wanted: tuple[int, ...] = USUAL_SIZES  # Sizes that should take it


def read_msccl_source(path: str) -> Plan | Program:
    """Read the plan of a file, or the verified program of an MSCCL XML file."""
    data, name = plan_bytes(path), file_name(path)
    if not is_xml(data):
        return decode_plan(data, name=name)
    judged = judge_document(parse_document(data, file=name), runs=False)
    judged.report.require_ok()
    return judged.program


def export_msccl_xml(
    source: Plan | Program,
    options: MscclXmlOptions,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    span: SizeSpan | None = None,
) -> Exported:
    """Export a plan, or the program of another target's file, for a runtime that reads MSCCL XML."""
    if options.target is None:
        raise InputError(f"expected `target` for MSCCL XML: choose one of {', '.join(TARGETS)}.")
    chosen, protocol = target_named(options.target), options.protocol
    if isinstance(source, Program):
        given = {name: value for name, value in asdict(options).items() if value not in (None, False)}
        extra = next((name for name in given if name != "target"), None)
        if extra is not None:
            raise InputError(
                f"an MSCCL XML file keeps its channels, protocol, sizes and name: leave out `{extra}`."
            )
        program = settled(source, chosen.buffers)
        verify_program(program, buffers=chosen.buffers).require_ok()
        return _exported(program, chosen, [])
    if protocol is not None and protocol not in PROTOCOLS:
        raise InputError(f"expected `protocol` Simple, LL or LL128, found {protocol!r}.")
    sizes = wanted_sizes(options.size) if span is None else _sizes_of(span)
    if protocol is None and span is not None:
        protocol = span.protocol
    if options.model is not None and not sizes.found:
        raise InputError(
            "`model` is that of the simulation which finds the sizes, found `size` beside it: leave one of them out."
        )
    count, keep = _wanted_trees(options.trees)
    form = MscclOptions(
        channels=options.channels,
        instances=options.instances or 1,
        calls=_calls(in_place=options.in_place, out_of_place=options.out_of_place),
        protocol=protocol,
        min_bytes=sizes.low,
        max_bytes=sizes.high,
        name=options.name or f"{source.problem.collective}-{source.topology.name}",
    )
    on_stage("making the program")
    found = fit_trees(
        source,
        lambda body: rough_program(body, chosen.name, form),
        buffers=chosen.buffers,
        instances=form.instances,
        sizes=sizes.wanted,
        trees=count,
        keep=keep,
    )
    program, notes = found.program, list(_fit_notes(found, chosen, form, sizes.wanted))
    notes.extend(_protocol_note(program, asked=options.protocol, span=span))
    if sizes.found:
        matchup, note = _size_range_of(found, options.model, on_stage)
        notes.append(note)
        if matchup is not None:
            program = replace(program, min_bytes=matchup.min_bytes, max_bytes=matchup.max_bytes)
    if program.max_bytes is not None and program.max_bytes == found.program.max_bytes != sizes.high:
        notes.append(_limit_note(program, program.max_bytes))
    on_stage("writing the file")
    return _exported(program, chosen, notes)


def wanted_sizes(size: str | Sequence[int] | None) -> WantedSizes:
    """Parse the sizes that use a file: ``all``, ``LOW:HIGH``, a list, or None to choose by simulation.

    Examples:
        >>> wanted_sizes("1M:3M")
        WantedSizes(found=False, low=1048576, high=3145728, wanted=(1048576, 2097152))
        >>> wanted_sizes("all").high is None, wanted_sizes(None).found
        (True, True)
    """
    if size is None:
        return WantedSizes(found=True)
    if size == "all":
        return WantedSizes()
    if isinstance(size, str):
        wanted = parse_sizes(size, option="`size`")
        highest = max(parse_size(end) for item in size.split(",") for end in item.split(":")[:2])
    else:
        wanted = tuple(sorted(set(size)))
        highest = max(wanted, default=0)
    if not wanted or wanted[0] < 1:
        raise InputError(f"expected `size` of 1 byte or more, such as 1M:1G, found {size!r}.")
    return WantedSizes(low=wanted[0], high=highest, wanted=wanted)


def _sizes_of(span: SizeSpan) -> WantedSizes:
    """Sizes of a range of a set of plans."""
    return WantedSizes(low=span.first_bytes, high=span.last_bytes, wanted=span.sizes or USUAL_SIZES)


def _wanted_trees(trees: int | str | None) -> tuple[int | None, bool]:
    """The number of trees per root, and whether the plan is to be taken as it is."""
    if trees is None or trees == "plan":
        return None, trees == "plan"
    text = str(trees)
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
        raise InputError(f"expected `trees` to be a number of 1 or more, or plan, found {text!r}.")
    return int(text), False


def _calls(*, in_place: bool, out_of_place: bool) -> CallKind | None:
    if in_place and out_of_place:
        return CallKind.BOTH
    if out_of_place:
        return CallKind.OUT
    return CallKind.IN if in_place else None


def _exported(program: Program, target: MscclTarget, notes: Sequence[str]) -> Exported:
    return Exported(
        text=msccl_xml(program, target=target.name),
        notes=(*_program_notes(program, target), *notes),
        suffix=".xml",
        read_as=target.name,
    )


def _program_notes(program: Program, target: MscclTarget) -> list[str]:
    """Who reads the file, what it needs, and how it is used."""
    places = [
        word
        for word, meant in (("in place", program.in_place), ("out of place", program.out_of_place))
        if meant
    ]
    figures = ", ".join(
        [
            f"{plural(program.most_blocks, 'thread block')} of {target.max_blocks}",
            f"{plural(program.num_channels, 'channel')} of {target.max_channels}",
            f"{plural(program.most_steps, 'step')} of {target.max_steps}",
        ]
    )
    unit = short_size(program.num_chunks * ELEMENT_BYTES)
    notes = [
        f"for {target.versions}; calls {' and '.join(places)} use it.",
        f"a GPU needs {figures} in its fullest thread block.",
        f"{plural(program.num_chunks, 'chunk')}: messages of float32 use it where their size is a multiple of {unit}.",
        f"to use it: {target.switches}; `coppice doctor FILE --target {target.name}` tells more.",
    ]
    copies = _settling_copies(program, target)
    if copies:
        notes.append(
            f"{plural(copies, 'send')} with {program.protocol} that others wait for {'has' if copies == 1 else 'have'} "
            "a copy of a slot onto itself behind, which is waited for instead: RCCL from ROCm 6.0 on counts such sends "
            "as done before all their threads have read."
        )
    if target.scratch_at_start:
        limit = target.max_bytes_of(program.max_bytes)
        slots = int(program.scratch_chunks.max(initial=0))
        taken = short_size(target.scratch_bytes(limit, slots, program.num_chunks))
        notes.append(
            f"{target.title} needs an upper limit, by which it allocates scratch memory when a communicator is made: "
            f"messages of up to {short_size(target.largest_of(limit) or 0)} use it, for {taken} of scratch on a GPU; "
            "`size=LOW:HIGH` sets it."
        )
    return notes


def _settling_copies(program: Program, target: MscclTarget) -> int:
    """Copies of a slot onto itself right behind a send that counts as done too early."""
    behind = np.flatnonzero(early_sends(program, target.buffers)[:-1]) + 1
    copies = (program.op[behind] == StepOp.COPY) & (program.src_buffer[behind] == program.dst_buffer[behind])
    copies &= program.src_offset[behind] == program.dst_offset[behind]
    return int(copies.sum())


def _fit_notes(
    found: FittedPlan, target: MscclTarget, form: MscclOptions, wanted: Sequence[int]
) -> Iterator[str]:
    """What was done to make the plan fit, and what it costs."""
    if found.trees is not None:
        yield _trees_note(found)
    if found.left_out:
        unit = short_size(found.program.num_chunks * ELEMENT_BYTES)
        span = f"{plural(len(wanted), 'size')} from {short_size(wanted[0])} to {short_size(wanted[-1])}"
        smallest = short_size(found.left_out[0])
        yield f"at {len(found.left_out)} of {span} it is not used: {smallest} is no multiple of {unit}."
    if form.instances > 1:
        try:
            alone = rough_program(found.plan.body, target.name, replace(form, instances=1))
        except CheckError:
            alone = None
        yield _instances_note(found, alone, form.instances)
    else:
        yield from _load_note(found, target)
    yield from _nic_note(found, target)


def _protocol_note(program: Program, *, asked: str | None, span: SizeSpan | None = None) -> Iterator[str]:
    """Why it is not Simple where nobody asked for another protocol."""
    if asked is None and span is not None and program.protocol == span.protocol:
        yield f"with protocol {program.protocol}, by the simulation; `protocol` names another one for all sizes."
    elif asked is None and program.protocol != "Simple":
        yield (
            f"with protocol {program.protocol}, since a {program.collective} between hosts deadlocks with Simple: "
            "proxies are told of a quarter of its steps; `protocol=LL128` is faster where the library uses LL128."
        )


def _limit_note(program: Program, most: int) -> str:
    """Which messages are left to the library since they would hang."""
    why = "runtimes cut its steps into so many messages then that thread blocks would wait for each other"
    if most == most_in_passes(program):
        why = "they take more passes than flags between thread blocks can count"
    return f"messages of more than {most:,} bytes do not use it (`maxBytes`), since {why}."


def _trees_note(found: FittedPlan) -> str:
    """With how many trees the problem was planned again, and what that loses."""
    loss = ""
    if found.loss is not None:
        loss = ": the optimum" if not found.loss else f": {percent_text(found.loss)} below the optimum"
    why = f", since {found.reason.rstrip('.')}" if found.reason else ""
    keep = (
        " (`trees=plan` keeps those of the plan)" if found.reason and found.given_fits and found.loss else ""
    )
    return f"planned again with {plural(found.trees or 0, 'tree')} per root{why}{loss}{keep}."


def _load_note(found: FittedPlan, target: MscclTarget) -> Iterator[str]:
    """How many instances carry the plan's rate, unless one does, or nothing is known of the GPUs."""
    program = found.program
    needed, carried = _load(found, program)
    if carried is None or needed <= carried:
        return
    many = ceil(needed / carried)
    room = min(target.max_blocks // program.most_blocks, target.max_channels // program.num_channels)
    advice = (
        f"`instances={min(many, room)}` spreads it" if room > 1 else "there is no room for more instances"
    )
    yield (
        f"at the plan's rate the busiest thread block sends {rate_text(round(needed, 1))} GB/s, and one sends about "
        f"{carried:g} with {program.protocol}: {advice}."
    )


def _instances_note(found: FittedPlan, alone: Program | None, instances: int) -> str:
    """What instances cost and bring against one, where one fits."""
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


def _nic_note(found: FittedPlan, target: MscclTarget) -> Iterator[str]:
    """Whether transfers leave by the NICs that the plan names, where a GPU has a choice."""
    body = found.plan.body
    kept = kept_share(found.program, lower(body) if isinstance(body, Forest) else body)
    if kept is None:
        return
    rule = "a GPU with n NICs to itself sends by NIC c mod n on channel c"
    if not target.by_nic:
        yield f"{target.title} sends by one NIC of a GPU whatever the channel: those that the plan names are not kept."
    elif kept == 1:
        yield f"every NIC carries what the plan says: {rule}."
    else:
        yield f"{percent_text(kept)} of what leaves by a NIC leaves by the one that the plan names: {rule}."


def _load(found: FittedPlan, program: Program) -> tuple[Fraction, float | None]:
    """What the busiest thread block of a program must send, and what one can, in GB/s."""
    topology = found.plan.topology
    return busiest_gb_per_s(program, found.plan.algbw_gb_per_s), block_gb_per_s(topology, program.protocol)


def _size_range_of(
    found: FittedPlan, model: ModelChoice | None, on_stage: Callable[[str], None]
) -> tuple[WinningRange | None, str]:
    """The range of sizes by simulation, and what there is to say about it."""
    assumed = model_name(model)
    if found.program.num_ranks > MOST_RANKS:
        return None, (
            f"all sizes use it: the range is not simulated for more than {MOST_RANKS} ranks; "
            "`size=LOW:HIGH` sets it."
        )
    on_stage("comparing with the library")
    try:
        chosen = winning_range(found.plan, found.program, model=model, on_stage=on_stage)
    except InputError as error:
        return None, f"all sizes use it: {error}"
    if chosen is None:
        return None, (
            f"all sizes use it, although by simulation (model {assumed}) the library is as fast at every "
            "size from 1K to 4G: measure before you use it, or set `size`."
        )
    return chosen, _range_note(chosen)


def _range_note(chosen: WinningRange) -> str:
    """Which sizes use the file, and the figures that say so."""
    inside = chosen.inside
    figures = [f"at {_matchup(inside[0])}"]
    if len(inside) > 1:
        figures.append(f"at {_matchup(max(inside, key=lambda matchup: matchup.gain))}")
    worst = min(inside, key=lambda matchup: matchup.gain)
    if not worst.won:
        figures.append(f"not quite at {_matchup(worst)}")
    outside = [
        f"but at {_matchup(matchup)}" for matchup in (chosen.below, chosen.above) if matchup is not None
    ]
    words = ", ".join(dict.fromkeys([*figures, *outside]))
    return f"{_span(chosen)} use it, by simulation: {words} (model {chosen.model.name}); `size=all` keeps all sizes."


def _span(chosen: WinningRange) -> str:
    low, high = chosen.min_bytes, chosen.max_bytes
    if high is None:
        return f"messages of {short_size(low)} and more" if low else "all sizes"
    return (
        f"messages of {short_size(low)} to {short_size(high)}"
        if low
        else f"messages of up to {short_size(high)}"
    )


def _matchup(matchup: Matchup) -> str:
    """``1M 28 us against 57 us of nccl-ring with LL``."""
    return f"{short_size(matchup.size_bytes)} {_us(matchup.plan_us)} against {_us(matchup.rival_us)} of {matchup.rival}"


def _us(time_us: float) -> str:
    return f"{time_us:.3g} us" if time_us < 1000 else f"{time_us / 1000:.3g} ms"
