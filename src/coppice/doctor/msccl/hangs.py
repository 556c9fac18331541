"""Doctor rules about running: at which sizes ranks would wait for each other for ever.

They look at the program that a tolerant reader makes of the file; what it cannot read is left to other rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from coppice.doctor.framework import ERROR, WARNING, Complaint, Severity
from coppice.doctor.msccl.file import RULES, MscclFile
from coppice.doctor.msccl.use import reason_not_used
from coppice.errors import InputError
from coppice.export.msccl.reader import program_of
from coppice.program.deadlock import Deadlock
from coppice.program.two_sided.cutting import (
    fewest_together,
    fifo_depth,
    largest_safe,
    misled_proxies,
    most_in_passes,
)
from coppice.program.two_sided.order import find_order
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.structure import check_structure
from coppice.schedule.verification.report import Findings
from coppice.text import short_size


def _program(file: MscclFile) -> Program | None:
    try:
        return program_of(file.document).program
    except InputError:
        return None


@RULES.rule("H01", ERROR, "messages that are cut in several", "ranks hang")
def _cut(file: MscclFile) -> Iterator[Complaint]:
    program, findings = _program(file), Findings()
    messages = None if program is None else check_structure(program, findings)
    if program is None or messages is None:
        return
    depth = fifo_depth(program.protocol)
    try:
        find_order(program, messages, depth=depth)
    except Deadlock as circle:
        text = f"thread blocks wait for each other at every size: {circle}"
        yield file.document.algo_line, text.rstrip("."), "let both ends of each connection keep to one order"
        return
    together, circle_in_parts = fewest_together(program, messages, depth=depth)
    limit = largest_safe(program, together, file.target.buffers)
    if limit is not None:
        text = (
            f"steps of up to {int(program.count.max())} slots are cut into several messages, of which a connection "
            f"holds {depth}: {circle_in_parts.rstrip('.')}"
        )
        yield from _above(file, program, limit, text)


@RULES.rule("H02", WARNING, "steps of proxies", "ranks hang")
def _proxies(file: MscclFile) -> Iterator[Complaint]:
    algo, words = file.document.algo, file.target.collectives
    found = next((each for each, word in words.items() if word == algo.get("coll")), None)
    if found is not None and misled_proxies(algo.get("proto", ""), found):
        text = (
            f"{file.target.title} tells its proxies of a quarter of the steps of a {found} with {algo.get('proto')}: "
            "connections between hosts stand still, those within a host do not"
        )
        yield file.document.algo_line, text, 'write proto="LL" where ranks are on several hosts'


@RULES.rule("H03", WARNING, "passes that flags can count", "thread blocks that wait for others hang")
def _passes(file: MscclFile) -> Iterator[Complaint]:
    program = _program(file)
    most = None if program is None else most_in_passes(program, file.target.buffers)
    if program is not None and most is not None:
        yield from _above(file, program, most, "slots take more passes than flags can count")


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
