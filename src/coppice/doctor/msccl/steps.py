"""Doctor rules about steps: types, slots, positions and dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from coppice.doctor.framework import ERROR, WARNING, Complaint
from coppice.doctor.msccl.text import RULES, MscclFile
from coppice.export.msccl.document import ABSENT, STEP_TYPES

_NOP = STEP_TYPES.index("nop")
_REDUCE = STEP_TYPES.index("re")
_READS = frozenset(STEP_TYPES.index(name) for name in ("s", "cpy", "re", "rrs", "rrc", "rrcs"))
_WRITES = frozenset(STEP_TYPES.index(name) for name in ("r", "cpy", "re", "rcs", "rrc", "rrcs"))
_SLOTS = ("i_chunks", "o_chunks", "s_chunks")
_BUFFER_NAMES = ("input", "output", "scratch")


def _by_block(file: MscclFile) -> Iterator[tuple[int, list[int]]]:
    """(thread block, rows of its steps in the order of the file)."""
    rows: list[list[int]] = [[] for _ in range(file.document.num_blocks)]
    for row, block in enumerate(file.document.step["tb"]):
        rows[block].append(row)
    yield from enumerate(rows)


@RULES.rule("S01", ERROR, "types and buffers", "the file is refused")
def _words(file: MscclFile) -> Iterator[Complaint]:
    for defect in file.document.defects:
        if defect.kind == "word":
            yield defect.line, defect.text, "write one of them, in lower case"


@RULES.rule("S02", ERROR, "types that the target runs", "calls fail when they are launched")
def _types(file: MscclFile) -> Iterator[Complaint]:
    target, step = file.target, file.document.step
    foreign = {"ra"} - target.extra_types
    bad = {STEP_TYPES.index(name) for name in target.refused_types | foreign}
    first: dict[int, int] = {}
    number: dict[int, int] = {}
    for kind, line in zip(step["type"], step["line"], strict=True):
        if kind in bad:
            first.setdefault(kind, line)
            number[kind] = number.get(kind, 0) + 1
    for kind, line in sorted(first.items()):
        name = STEP_TYPES[kind]
        fix = (
            "split it into r, re and s through scratch slots (`coppice export` does)"
            if name in target.refused_types
            else "there is no replacement"
        )
        yield line, f"{number[kind]} steps have the type {name}, which {target.title} does not run", fix


@RULES.rule("S03", ERROR, "number of steps", "the file is refused")
def _number(file: MscclFile) -> Iterator[Complaint]:
    step, most = file.document.step, file.target.max_steps
    for block, rows in _by_block(file):
        labels = [step["s"][row] for row in rows if step["s"][row] != ABSENT]
        if labels and (max(labels) >= most or min(labels) < 0):
            worst = max(labels) if max(labels) >= most else min(labels)
            text = f"a thread block has step {worst}; {file.target.title} has steps 0 .. {most - 1}"
            yield file.document.tb["line"][block], text, "spread the steps over more thread blocks"


@RULES.rule("S04", WARNING, "numbers of steps ascend by one", "dependencies mean other steps")
def _labels(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for _, rows in _by_block(file):
        for place, row in enumerate(rows):
            if step["s"][row] not in (place, ABSENT):
                text = (
                    f"s is {step['s'][row]} where {place} is due; steps run in the order of the file and are "
                    "counted, so that deps means another step than it says"
                )
                yield step["line"][row], text, "number the steps 0, 1, 2, ..."
                break


@RULES.rule("S05", ERROR, "a nop waits for something", "dependencies mean other steps")
def _idle(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for row, kind in enumerate(step["type"]):
        if kind == _NOP and step["depid"][row] < 0:
            text = "a nop waits for nothing; it is not counted at run time, and all later positions are off by one"
            yield step["line"][row], text, "remove it and number the steps anew"


@RULES.rule("S06", ERROR, "nops before a step that waits", "the file is refused")
def _nop_runs(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for _, rows in _by_block(file):
        waiting = False
        for row in rows:
            if step["type"][row] == _NOP:
                waiting = waiting or step["depid"][row] >= 0
                continue
            if waiting and step["depid"][row] < 0:
                text = "a step after nops has no dependency of its own, which the loader refuses"
                yield step["line"][row], text, "move the last dependency from its nop to this step"
            waiting = False
        if waiting:
            text = "a thread block ends with a nop: nothing follows that could wait, and the loader drops it"
            yield WARNING, step["line"][rows[-1]], text, "remove it"


@RULES.rule("S07", ERROR, "slots of a step", "the file is refused, or memory overwritten")
def _counts(file: MscclFile) -> Iterator[Complaint]:
    step, most = file.document.step, file.target.max_count
    for row, count in enumerate(step["cnt"]):
        if step["type"][row] in (_NOP, -1) or count == ABSENT:
            continue
        if not 1 <= count < most:
            text = f"cnt is {count}; steps move 1 .. {most - 1} slots"
            yield step["line"][row], text, "split the step" if count >= most else "remove it"


@RULES.rule("S08", ERROR, "slots within their buffers", "the file is refused, or memory overwritten")
def _slots(file: MscclFile) -> Iterator[Complaint]:
    document = file.document
    step, gpu = document.step, document.gpu
    gpu_of_block = document.tb["gpu"]
    for row, kind in enumerate(step["type"]):
        owner = gpu_of_block[step["tb"][row]]
        for word, kinds in (("src", _READS), ("dst", _WRITES)):
            buffer, offset = step[f"{word}buf"][row], step[f"{word}off"][row]
            if kind not in kinds or buffer < 0 or offset == ABSENT:
                continue
            slots, last = gpu[_SLOTS[buffer]][owner], offset + max(step["cnt"][row], 1) - 1
            if slots == ABSENT or (offset >= 0 and last < slots):
                continue
            checked = "" if offset >= slots or offset < 0 else ", which the loader does not notice"
            text = (
                f"{word}off {offset} with cnt {step['cnt'][row]} ends at slot {last} of the "
                f"{_BUFFER_NAMES[buffer]}, which has {slots} of them{checked}"
            )
            yield step["line"][row], text, f"mend the offset, or {_SLOTS[buffer]} of gpu {gpu['id'][owner]}"


@RULES.rule("S09", ERROR, "hasdep is 0 or 1", "the file is refused")
def _flags(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for row, flag in enumerate(step["hasdep"]):
        if flag not in (0, 1, ABSENT) and step["type"][row] != _NOP:
            text = f"hasdep is {flag}"
            yield step["line"][row], text, "write 1 where another thread block waits, otherwise 0"


def _waits(file: MscclFile) -> Iterator[tuple[int, int, int, list[int] | None]]:
    """(row that waits, depid, deps, rows that are counted in the thread block waited for; None if it is not there)."""
    document = file.document
    step = document.step
    counted: dict[tuple[int, int], list[int]] = {}
    for block, rows in _by_block(file):
        kept = [row for row in rows if step["type"][row] != _NOP or step["depid"][row] >= 0]
        counted.setdefault((document.tb["gpu"][block], document.tb["id"][block]), kept)
    for row, other in enumerate(step["depid"]):
        if other >= 0:
            gpu = document.tb["gpu"][step["tb"][row]]
            yield row, other, step["deps"][row], counted.get((gpu, other))


@RULES.rule("S10", ERROR, "steps that are waited for are there", "ranks hang")
def _awaited(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for row, other, position, rows in _waits(file):
        if rows is None:
            yield step["line"][row], f"depid is {other}, but this gpu has no such thread block", "mend depid"
        elif not 0 <= position < len(rows):
            text = f"deps is {position}, but thread block {other} has {len(rows)} steps"
            yield step["line"][row], text, "mend deps"
        elif step["tb"][rows[position]] == step["tb"][row] and rows[position] >= row:
            text = "a step waits for itself or a later step of its own thread block"
            yield step["line"][row], text, "remove the wait"


@RULES.rule("S11", ERROR, "steps that are waited for tell it", "ranks hang")
def _silent(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for row, other, position, rows in _waits(file):
        if rows is None or not 0 <= position < len(rows):
            continue
        if not any(step["hasdep"][each] == 1 and step["type"][each] != _NOP for each in rows[position:]):
            text = f"step {position} of thread block {other} is waited for, but neither it nor a later one has hasdep=1"
            yield step["line"][row], text, "set hasdep=1 on it"


@RULES.rule("S12", WARNING, "steps that are waited for tell it at once", "ranks wait longer, or hang")
def _late(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for row, other, position, rows in _waits(file):
        if rows is None or not 0 <= position < len(rows):
            continue
        tells = [step["hasdep"][each] == 1 and step["type"][each] != _NOP for each in rows[position:]]
        if not tells[0] and any(tells):
            text = (
                f"step {position} of thread block {other} is waited for but has no hasdep=1: the wait ends "
                f"{tells.index(True)} steps later, or never if those need this one"
            )
            yield step["line"][row], text, "set hasdep=1 on the step that is meant"


@RULES.rule("S13", ERROR, "numbers that the loader cuts", "ranks hang, or use wrong slots")
def _narrow(file: MscclFile) -> Iterator[Complaint]:
    step, target = file.document.step, file.target
    for key, most in (
        ("depid", target.max_depid),
        ("srcoff", target.max_offset),
        ("dstoff", target.max_offset),
    ):
        for row, number in enumerate(step[key]):
            if number > most:
                text = (
                    f"{key} is {number}; the loader keeps {'8' if key == 'depid' else '16'} bits, so that {number} "
                    "becomes another number"
                )
                yield step["line"][row], text, f"stay at {most} or below"
                break


def _runs(file: MscclFile) -> Iterator[tuple[list[int], bool]]:
    """(rows that run as one reduction, whether their counts differ)."""
    step = file.document.step
    keys = ("dstbuf", "dstoff", "srcbuf")
    for _, rows in _by_block(file):
        run: list[int] = []
        for row in rows:
            same = bool(run) and all(step[key][row] == step[key][run[-1]] for key in keys)
            if (
                step["type"][row] == _REDUCE
                and same
                and step["depid"][row] == -1
                and not step["hasdep"][run[-1]]
            ):
                run.append(row)
                continue
            if len(run) > 1:
                yield run, len({step["cnt"][each] for each in run}) > 1
            run = [row] if step["type"][row] == _REDUCE else []
        if len(run) > 1:
            yield run, len({step["cnt"][each] for each in run}) > 1


@RULES.rule("S14", ERROR, "joined reductions have one count", "wrong results")
def _uneven_runs(file: MscclFile) -> Iterator[Complaint]:
    step = file.document.step
    for run, uneven in _runs(file):
        if uneven:
            text = f"{len(run)} re steps into one slot run as one, with the cnt of the last, but their counts differ"
            yield step["line"][run[0]], text, "set hasdep=1 where the count changes, which ends the run"


@RULES.rule("S15", WARNING, "joined reductions", "wrong results")
def _long_runs(file: MscclFile) -> Iterator[Complaint]:
    step, most = file.document.step, file.target.max_fused
    for run, _ in _runs(file):
        if len(run) > most:
            text = (
                f"{len(run)} re steps into one slot would run as one; the kernel adds {most} at a time, and the "
                "loader breaks only the first such run of a thread block"
            )
            yield step["line"][run[0]], text, f"set hasdep=1 on every {most}th of them"
