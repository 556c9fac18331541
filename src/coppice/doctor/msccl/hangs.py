"""Doctor rules about execution: sizes at which ranks deadlock, and operations that kernels get wrong.

They look at the program that a tolerant reader makes of the file; what it cannot read is left to other rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from coppice.doctor.framework import ERROR, WARNING, Complaint, Severity
from coppice.doctor.msccl.text import RULES, MscclFile
from coppice.doctor.msccl.use import reason_not_used
from coppice.errors import InputError
from coppice.export.msccl.reader import program_of
from coppice.program.dialects.thread_blocks.cutting import (
    fewest_together,
    fifo_depth,
    largest_safe,
    most_in_passes,
    proxy_step_deadlock,
)
from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.races import early_sentence, written_early
from coppice.program.dialects.thread_blocks.structure import check_structure
from coppice.program.dialects.thread_blocks.unroll import early_sends
from coppice.program.memory import memory_of
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings
from coppice.text import short_size


@lru_cache(maxsize=1)
def _program(file: MscclFile) -> Program | None:
    try:
        return program_of(file.document).program
    except InputError:
        return None


class _Limit(NamedTuple):
    """Up to which size a program comes to an end, None for no limit, and why not beyond."""

    most: int | None
    why: str


@lru_cache(maxsize=1)
def _limit(file: MscclFile) -> _Limit | None:
    """Of messages that are cut in several; None where there is no program to run."""
    program, findings = _program(file), Findings()
    messages = None if program is None else check_structure(program, findings)
    if program is None or messages is None:
        return None
    depth = fifo_depth(program.protocol)
    try:
        execution_order(program, messages, depth=depth)
    except Deadlock as circle:
        return _Limit(0, f"thread blocks wait for each other at every size: {circle}".rstrip("."))
    together, circle_in_parts = fewest_together(program, messages, depth=depth)
    return _Limit(
        largest_safe(program, together, file.target.buffers),
        f"steps of up to {int(program.count.max(initial=1))} slots are cut into several messages, of which a "
        f"connection holds {depth}: {circle_in_parts.rstrip('.')}",
    )


def reason_not_run(file: MscclFile, size: int) -> str | None:
    """Why a call of ``size`` bytes with the file would deadlock; None if it would not.

    Args:
        size: M in bytes.
    """
    program, limit = _program(file), _limit(file)
    most = None if program is None else most_in_passes(program, file.target.buffers)
    limits = [each for each in (None if limit is None else limit.most, most) if each is not None]
    if not limits or size <= min(limits):
        return None
    return f"ranks would hang above {min(limits)} bytes" if min(limits) else "ranks would hang"


@RULES.rule("H01", ERROR, "messages that are cut in several", "ranks hang", of_sizes=True)
def _cut(file: MscclFile) -> Iterator[Complaint]:
    program, limit = _program(file), _limit(file)
    if program is None or limit is None or limit.most is None:
        return
    if limit.why.startswith("thread blocks"):
        yield file.document.algo_line, limit.why, "let both ends of each connection keep to one order"
        return
    yield from _above(file, program, limit.most, limit.why)


@RULES.rule("H02", WARNING, "steps of proxies", "ranks hang")
def _proxies(file: MscclFile) -> Iterator[Complaint]:
    algo, words = file.document.algo, file.target.collectives
    found = next((each for each, word in words.items() if word == algo.get("coll")), None)
    if found is not None and proxy_step_deadlock(algo.get("proto", ""), found):
        text = (
            f"{file.target.title} tells its proxies of a quarter of the steps of a {found} with {algo.get('proto')}: "
            "connections between hosts deadlock, those within a host do not"
        )
        yield file.document.algo_line, text, 'write proto="LL" where ranks are on several hosts'


@RULES.rule(
    "H03", WARNING, "passes that flags can count", "thread blocks that wait for others hang", of_sizes=True
)
def _passes(file: MscclFile) -> Iterator[Complaint]:
    program = _program(file)
    most = None if program is None else most_in_passes(program, file.target.buffers)
    if program is not None and most is not None:
        yield from _above(file, program, most, "slots take more passes than flags can count")


@RULES.rule("H04", ERROR, "sends that others wait for", "results are wrong now and then")
def _early(file: MscclFile) -> Iterator[Complaint]:
    program, findings = _program(file), Findings()
    messages = None if program is None else check_structure(program, findings)
    if program is None or messages is None:
        return
    early = early_sends(program, file.target.buffers)
    if not early.any():
        return
    try:
        order = execution_order(program, messages, depth=fifo_depth(program.protocol))
    except Deadlock:
        return  # another rule tells
    for in_place in (True, False):
        if not (program.in_place, program.out_of_place)[not in_place]:
            continue
        memory = memory_of(program, in_place=in_place)
        found = written_early(program, memory, messages, order, early)
        number = len(found.first)
        if number:
            more = f" (and {number - 1} others likewise)" if number > 1 else ""
            what, _, fix = early_sentence(program, memory, found, 0).rstrip(".").partition("; ")
            yield (
                file.document.algo_line,
                what + more,
                f"{fix} (`coppice export FILE --to msccl-xml` does that)",
            )
            return


def _above(file: MscclFile, program: Program, limit: int, text: str) -> Iterator[Complaint]:
    """What happens above a limit of sizes: an error if a size that is asked for is, or any where none is asked for."""
    sizes = [size for size in file.sizes if size > limit and reason_not_used(file, size) is None]
    if sizes:
        more = f" and {len(sizes) - 1} other sizes" if sizes[1:] else ""
        where, severity = f"at {short_size(sizes[0])}{more}", ERROR
    else:
        if program.max_bytes is not None and program.max_bytes <= limit:
            return
        where, severity = f"above {limit} bytes", _severity(file)
    fix = f'write maxBytes="{limit}"' if limit else "make its steps smaller"
    yield severity, file.document.algo_line, f"{where} {text}", fix


def _severity(file: MscclFile) -> Severity:
    return WARNING if file.sizes else ERROR
