"""Lower a plan to a two-sided program within the limits of a runtime that reads MSCCL XML."""

from __future__ import annotations

import enum
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.export.formats import Excess
from coppice.export.msccl.rows import STEPS, excesses
from coppice.export.msccl.targets import MscclTarget, target_named
from coppice.program.dialects.thread_blocks.assignment import waited_first
from coppice.program.dialects.thread_blocks.channels import ChannelLimits
from coppice.program.dialects.thread_blocks.cutting import proxy_step_deadlock, within_safe_sizes
from coppice.program.dialects.thread_blocks.lower import Prepared, emit, prepare
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.races import settled
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

_TRIED_CHANNELS = (8, 4, 2, 1, 16, 32)


class CallKind(enum.StrEnum):
    """Calls that a file serves: in place, out of place, or both."""

    IN = "in place"
    OUT = "out of place"
    BOTH = "in place and out of place"


@dataclass(frozen=True, kw_only=True)
class MscclOptions:
    """Options of an export to MSCCL XML."""

    # Most channels; None tries 8 for each instance, fewer, then more, and takes the first number that fits
    channels: int | None = None
    instances: int = 1  # Copies of the plan side by side, each on its part of the data
    # Which calls it is for. None is both where one program serves both as well as either: where the target
    # takes such files, and where sums need no detour (see :func:`serves_both`); otherwise in place, and out
    # of place for an all-to-all, which cannot run in place.
    calls: CallKind | None = None
    name: str = "coppice"  # Label
    protocol: str | None = None  # `Simple`, `LL` or `LL128`; None is what :func:`usual_protocol` says
    min_bytes: int = 0  # Smallest M that it is meant for
    max_bytes: int | None = None  # Largest M; None is no limit


def program_for(plan: Schedule | Forest, target: str, form: MscclOptions | None = None) -> Program:
    """Lower a plan for one target, and verify the program.

    Args:
        target: Name of the runtime, as in ``TARGETS``.
        form: How it is to be written down.
    """
    program = rough_program(plan, target, form)
    verify_program(program, buffers=target_named(target).buffers).require_ok()
    return program


def rough_program(plan: Schedule | Forest, target: str, form: MscclOptions | None = None) -> Program:
    """As :func:`program_for`, without verification, to test whether it fits.

    Args:
        form: How it is to be written down.
    """
    chosen, form = target_named(target), form or MscclOptions()
    usual = usual_protocol(plan.collective, plan.topology)
    form = replace(form, protocol=form.protocol or usual)
    if usual != "Simple" and proxy_step_deadlock(form.protocol or usual, plan.collective):
        raise InputError(
            f"a {plan.collective} between hosts deadlocks in {chosen.title} with `protocol={form.protocol}`, since "
            f"its proxies are told of a quarter of the steps: export it with `protocol={usual}`."
        )
    *better, last = _kinds_tried(plan.collective, chosen, form.calls)
    for calls in better:
        with suppress(CheckError):
            return _placed(plan, chosen, form, calls)
    return _placed(plan, chosen, form, last)


def usual_protocol(collective: Collective, topology: Topology) -> str:
    """Default protocol of a file: Simple, or LL where Simple would deadlock between hosts.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> usual_protocol(Collective.BROADCAST, preset("dgx-a100"))
        'Simple'
        >>> usual_protocol(Collective.BROADCAST, preset("dgx-a100", boxes=2))
        'LL'
    """
    hosts = len(np.unique(topology.host[topology.rank_nodes]))
    return "LL" if hosts > 1 and proxy_step_deadlock("Simple", collective) else "Simple"


def serves_both(collective: Collective, target: MscclTarget) -> bool:
    """Whether one program is as good for calls in place as for those out of place.

    What is received out of place goes straight to the output. Where a target has no step that receives and adds, and
    the output is the input, it would overwrite what it is to be added to: sums then take another way in place.

    Examples:
        >>> serves_both(Collective.ALL_REDUCE, target_named("azure-executor"))
        True
        >>> serves_both(Collective.ALL_REDUCE, target_named("rccl"))
        False
    """
    if not target.both_places or collective is Collective.ALL_TO_ALL:
        return False
    return not (target.refused_types and collective.reduces)


def _kinds_tried(collective: Collective, target: MscclTarget, wish: CallKind | None) -> tuple[CallKind, ...]:
    """What is tried, in order."""
    if wish is None:
        if collective is Collective.ALL_TO_ALL:
            return (CallKind.OUT,)
        return (CallKind.BOTH, CallKind.IN) if serves_both(collective, target) else (CallKind.IN,)
    if wish is CallKind.BOTH and not serves_both(collective, target):
        if not target.both_places:
            reason = f"{target.title} takes a file for one of them"
        elif collective is Collective.ALL_TO_ALL:
            reason = "an all-to-all cannot run in place"
        else:
            reason = f"sums for {target.title} take another way in place than out of place"
        raise InputError(
            f"expected a file for calls in place or out of place, found both: {reason}; write one file for each."
        )
    return (wish,)


def _placed(plan: Schedule | Forest, chosen: MscclTarget, form: MscclOptions, calls: CallKind) -> Program:
    """The program for one kind of calls, by the NICs that the plan names if that fits."""
    prepared = prepare(
        plan,
        in_place=calls is CallKind.IN,
        instances=form.instances,
        by_nic=chosen.by_nic,
        max_count=chosen.max_count - 1,
    )
    if prepared.exits is not None:
        with suppress(CheckError):
            return _within(prepared, chosen, form, calls)
        prepared = replace(prepared, exits=None)
    return _within(prepared, chosen, form, calls)


def _within(prepared: Prepared, chosen: MscclTarget, form: MscclOptions, calls: CallKind) -> Program:
    """The program with the first number of channels that fits."""
    failed: Excess | None = None
    refused: CheckError | None = None
    wanted = _TRIED_CHANNELS if form.channels is None else (form.channels,)
    scale = form.instances if form.channels is None else 1
    enough = chosen.max_channels + 1  # channels from which on more are not made use of
    crowded = 0  # channels that leave thread blocks too many steps: fewer leave them more
    for channels in dict.fromkeys(min(each * scale, chosen.max_channels) for each in wanted):
        if channels >= enough or channels <= crowded:
            continue
        allowed = ChannelLimits(channels=channels, blocks=chosen.max_blocks, peers=chosen.max_peers)
        try:
            program = _emitted(prepared, allowed, chosen, form, any_size=False)
        except CheckError as error:
            refused = refused or error
            continue
        if 2 * program.num_channels <= channels:  # it could have had twice as many
            enough = min(enough, max(program.num_channels, 1))
        found = excesses(program, target=chosen.name)
        if not found:
            if int(program.count.max(initial=1)) > 1:  # steps that a runtime may cut
                steady = _emitted(prepared, allowed, chosen, form, any_size=True)
                program = within_safe_sizes(program) if excesses(steady, target=chosen.name) else steady
            else:
                program = within_safe_sizes(program)
            return replace(program, in_place=calls is not CallKind.OUT, out_of_place=calls is not CallKind.IN)
        if any(each.limit == STEPS for each in found):
            crowded = max(crowded, channels)
        if failed is None or found[0].found < failed.found:
            failed = found[0]
    if failed is None and refused is not None:
        raise refused
    words = "" if failed is None else failed.sentence
    raise CheckError(f"the plan does not fit {chosen.title}: it has {words}")


def _emitted(
    prepared: Prepared, allowed: ChannelLimits, chosen: MscclTarget, form: MscclOptions, *, any_size: bool
) -> Program:
    program = emit(
        prepared,
        allowed,
        fused=not chosen.refused_types,
        any_size=any_size,
        name=form.name,
        protocol=form.protocol,
        min_bytes=form.min_bytes,
        max_bytes=form.max_bytes,
    )
    if int(program.dep_block.max(initial=0)) > chosen.max_depid:
        program = waited_first(program)
    return settled(program, chosen.buffers)
