"""Export a plan as a lowered and verified put/signal program, or as one Python file that runs it with NumPy only."""

from __future__ import annotations

import base64
import re
import textwrap
import zlib
from collections.abc import Callable
from fractions import Fraction
from importlib import resources
from typing import Any, NotRequired, TypedDict

from coppice.errors import InputError
from coppice.export.formats import Exported, PutSignalOptions, PutSignalScriptOptions, SizeSpan
from coppice.export.put_signal.document import put_signal_json
from coppice.fitting.put_signal import fit_put_signal
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.program.memory import all_sizes
from coppice.schedule.plan import Plan
from coppice.text import percent_text, plural
from coppice.version import __version__

_EMPTY = 'PROGRAM = ""\n'
_FUTURE = "from __future__ import annotations\n"
_WIDTH = 110


class _Options(TypedDict):
    signals: int
    graphs: bool
    staging: NotRequired[Fraction]
    name: str


def export_put_signal(
    plan: Plan,
    options: PutSignalOptions,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    span: SizeSpan | None = None,
) -> Exported:
    """Export a plan as a put/signal program for engines over stock NCCL and RCCL."""
    program = verified_put_signal(plan, options, on_stage=on_stage, span=span)
    on_stage("writing the program")
    text = put_signal_json(program, provenance=provenance_of(plan, span))
    return Exported(text=text, notes=_notes(program), suffix=".psp.json")


def verified_put_signal(
    plan: Plan,
    options: PutSignalOptions,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    span: SizeSpan | None = None,
) -> PutSignalProgram:
    """Lower and verify a plan; parameters that are not given are tuned to the size by simulation.

    Args:
        span: Sizes that are to use it: it is tuned to the one in their middle that the set was made for.
    """
    pieces, communicators, groups, size = options.pieces, options.communicators, options.groups, options.size
    if span is not None and span.sizes:
        size = span.sizes[len(span.sizes) // 2] or None
    if options.staging is not None and not 0 <= options.staging <= 1000:
        raise InputError(
            f"expected `staging` in per cent of the message, 0 to 1000, found {options.staging}."
        )
    if size is not None and size < 1:
        raise InputError(f"expected `size` of 1 byte or more, found {size}: leave it out to choose for none.")
    shared = _Options(
        signals=options.signals,
        graphs=options.graphs,
        name=options.name or f"{plan.problem.collective}-{plan.topology.name}",
    )
    if options.staging is not None:
        shared["staging"] = Fraction(options.staging, 100)
    if size is None:
        on_stage("lowering the plan")
        given = {
            key: value
            for key, value in (("communicators", communicators), ("groups", groups))
            if value is not None
        }
        program = lower_put_signal(plan.body, pieces=pieces, **given, **shared)
    else:
        on_stage("choosing communicators and pieces")
        program = fit_put_signal(
            plan.body, size, pieces=pieces, communicators=communicators, groups=groups, **shared
        ).program
    on_stage("verifying the program")
    verify_put_signal(program).require_ok()
    return program


def provenance_of(plan: Plan, span: SizeSpan | None = None) -> dict[str, Any]:
    """Provenance of a program, and the sizes that are to use it."""
    sizes = {} if span is None else {"first_bytes": span.first_bytes, "last_bytes": span.last_bytes}
    return {
        **sizes,
        "coppice": __version__,
        "planner": plan.planner,
        "topology": plan.topology.name,
        "topology_sha256": plan.topology.sha256,
    }


def _notes(program: PutSignalProgram) -> tuple[str, ...]:
    messages = program.messages
    share = Fraction(int(program.staging.max(initial=0)), program.num_chunks)
    lines = plural(program.num_communicators, "communicator")
    chunks = plural(program.num_chunks, "chunk")
    least = "2.31.2" if program.signal.any() or program.context.any() else "2.29.2"
    reads = int(all_sizes(program)[:2].max())
    ways = [
        way
        for way, meant in (("in place", program.in_place), ("out of place", program.out_of_place))
        if meant
    ]
    return (
        f"for NCCL {least} or later, and RCCL with one-sided calls; {' and '.join(ways)}.",
        f"a GPU issues up to {int(messages.max())} puts and signals on {lines}.",
        f"{chunks}, up to {reads} of them in a buffer; staging memory is {percent_text(share)} of the message.",
        "`coppice doctor FILE --target nccl --fact version=VERSION` tells what your library makes of it.",
    )


def export_put_signal_script(
    plan: Plan,
    options: PutSignalScriptOptions,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    span: SizeSpan | None = None,
) -> Exported:
    """Export a Python script that runs a plan over nccl4py, torch, or as threads on NumPy arrays.

    The script is the modules of :mod:`coppice.export.put_signal.standalone` with the program in them.
    """
    program = verified_put_signal(plan, options, on_stage=on_stage, span=span)
    on_stage("writing the script")
    provenance = provenance_of(plan, span)
    text = put_signal_json(program, provenance=provenance)
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    held = "\n".join(textwrap.wrap(packed, _WIDTH, break_on_hyphens=False))
    parts = resources.files("coppice.export.put_signal.standalone")
    source = parts.joinpath("emulator.py").read_text().replace(_EMPTY, f'PROGRAM = """\n{held}\n"""\n', 1)
    for name in ("gpus.py", "command.py"):
        following = parts.joinpath(name).read_text().partition(_FUTURE)[2]
        source += re.sub(r"(?m)^from coppice[^)]*\)\n", "", following)
    first = (
        f"#!/usr/bin/env python3\n# {program.name}: {program.collective} on {plural(program.num_ranks, 'rank')}, "
        f"planned by Coppice {provenance['coppice']} ({provenance['planner']}).\n"
    )
    return Exported(
        text=first + source,
        notes=(
            "`python FILE` runs all ranks on NumPy arrays, `torchrun ... FILE --engine nccl4py` or `torch` on GPUs.",
            f"it holds {plural(program.num_operations, 'operation')}, and needs no Coppice.",
        ),
        suffix=".py",
    )
