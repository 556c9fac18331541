"""From a plan to a program that fits a runtime which reads MSCCL XML."""

from __future__ import annotations

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.export.msccl_xml import Excess, excesses
from coppice.export.msccl_xml_targets import target_named
from coppice.program.lower import lower_to_program
from coppice.program.program import Program
from coppice.program.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule

__all__ = ["program_for"]

_TRIED_CHANNELS = (8, 4, 2, 1, 16, 32)


def program_for(
    plan: Schedule | Forest,
    target: str,
    *,
    channels: int | None = None,
    in_place: bool | None = None,
    name: str = "coppice",
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int | None = None,
) -> Program:
    """The program of a plan for one target, verified.

    Args:
        plan: The plan.
        target: Name of the runtime, as in ``TARGETS``.
        channels: Most channels; None tries 8, fewer, then more, and takes the first number that fits.
        in_place: Input and output share memory; None means yes wherever the collective can.
        name: Label.
        protocol: ``Simple``, ``LL`` or ``LL128``.
        min_bytes: Smallest M that it is meant for.
        max_bytes: Largest M.

    Raises:
        CheckError: If it does not fit; with the limit, by how much, and the next step.
        InputError: If the plan cannot be lowered, or the target does not exist or run the collective.
    """
    chosen = target_named(target)
    place = plan.collective is not Collective.ALL_TO_ALL if in_place is None else in_place
    failed: Excess | None = None
    refused: CheckError | None = None
    for tried in _TRIED_CHANNELS if channels is None else (channels,):
        try:
            program = lower_to_program(
                plan,
                in_place=place,
                channels=min(tried, chosen.max_channels),
                max_blocks=chosen.max_blocks,
                max_count=chosen.max_count - 1,
                fused=not chosen.refused_types,
                name=name,
                protocol=protocol,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
            )
        except CheckError as error:
            refused = error
            continue
        found = excesses(program, target=target)
        if not found:
            verify_program(program).require_ok()
            return program
        if failed is None or found[0].found < failed.found:
            failed = found[0]
    if failed is None and refused is not None:
        raise refused
    words = "" if failed is None else failed.sentence
    msg = f"the plan does not fit {chosen.title}: it has {words}"
    raise CheckError(msg)
