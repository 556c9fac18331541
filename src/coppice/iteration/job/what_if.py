"""What-if variants of a job: faster or slower components, lost boxes or NICs.

A member that is slower than the others paces them all: sums and stages wait for it. So there are ways on, and all are
computed: keep the job as it is at the pace of the slowest member, keep that member and lay the job out anew, or drain
its box and lay the job out on those that remain, some of which may be left idle; each time in the fastest layout that
fits. Which one is better is decided by samples a second. Layouts found anew are set beside the best that is known
of the healthy job: the first answer is the job as it is, and laid out anew. All run under the job's policies; a layout
found anew does without those that do not suit it, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coppice.errors import InputError
from coppice.iteration.job.changed_machines import (
    FACTOR,
    at_pace_of,
    degraded,
    paced_by,
    refusal,
    with_component,
    without_last,
)
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.job import Machines, TrainingJob
from coppice.iteration.layout import Layout
from coppice.iteration.search import search_layouts
from coppice.text import seconds_text, suggestion
from coppice.topology.model import Topology

_CHANGES = ("nic", "nvlink", "memory", "flops", "gpu", "drain", "without", "slow", "degrade")
_BATCHES = 12  # batches that are tried, the largest that numbers of replicas divide
_MORE = 1.02  # times the samples of a GPU that fewer of them may do, each
_IDLE = 8  # boxes that may be left idle, at most one fewer than this
_BOX = re.compile(r"(?:node|box)?(\d+)")
_PART = re.compile(r"(nic|gpu|node|box):?(\d+)?(?:@(?:node|box)?(\d+))?")


@dataclass(frozen=True, kw_only=True)
class WhatIfRow:
    """A layout after the change."""

    way: str  # What is done: `as it is`, `laid out anew`, `keep`, `keep, laid out anew` or `drain`
    gpus: int  # GPUs that take part
    layout: Layout  # How the job lies on them
    seconds: float  # An iteration
    samples_per_second: float  # What is trained in a second
    policy: str  # The policies, joined by `+`; `none`: nothing overlaps
    fits: bool = True  # It fits the memory of a GPU
    searched: bool = True  # The layout is the fastest that was found, not the job's own
    # What the policies' decisions for slower machines take there, where that is less than the job takes as it is; the
    # row then has the latter's time. None: the row has its own
    decided_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change with the possible layouts after it."""

    change: str  # The change; "none" for the job as it is
    rows: tuple[WhatIfRow, ...]  # The ways on, at least one
    why_not: str = ""  # Why a way is missing, or is told as no gain, in words

    @property
    def best(self) -> WhatIfRow:
        """Fitting layout of highest throughput."""
        return max(self.rows, key=lambda each: (each.fits, each.samples_per_second))


def what_if(job: TrainingJob, change: str, *, healthy: WhatIfRow | None = None) -> WhatIf:
    """Evaluate a job after a change.

    Slower machines are never told as a gain. A policy may decide otherwise for them, and be faster by that; the
    machines as they are could follow the same decisions. So the job is told to take as long as before, and why.

    Args:
        change: ``nic=x2``, ``nvlink=x0.5``, ``flops=x2``, ``memory=x1.2`` (its rate) or ``memory=141`` (its size in
            GB); ``gpu=H200``; ``drain=3`` (boxes) or ``drain=node17``; ``without=nic:5`` or ``without=gpu:3@node17``;
            ``slow=nic:5:x0.5`` or ``slow=node17:x0.8`` (its GPUs compute at 0.8 of their pace);
            ``degrade=box0/nic3=50%`` (a node of the topology).
        healthy: The job as it is; None: it is simulated where it is needed.

    Examples:
        >>> from coppice.iteration.job.file import parse_job_record
        >>> from coppice.iteration.job.job import job_of
        >>> job = job_of(parse_job_record('''
        ... model.name = "gpt-7.5b"
        ... cluster = {topology = "dgx-a100", boxes = 4}
        ... layout = {tp = 4, global_batch = 64}
        ... ''', where="job.toml"))
        >>> slow = what_if(job, "slow=nic:3:x0.5")
        >>> [row.way for row in slow.rows], slow.best.way
        (['keep', 'keep, laid out anew', 'drain'], 'keep, laid out anew')
        >>> what_if(job, "nic=x2").best.seconds < what_if(job, "nic=x1").best.seconds
        True
    """
    name, equals, value = change.partition("=")
    if not equals or name not in _CHANGES or not value:
        hint = suggestion(name, _CHANGES, otherwise=f"such as nic=x2, of {', '.join(_CHANGES)}.")
        raise InputError(f"expected a change such as nic=x2 (`what_if`), found {change!r}: {hint}")
    if name == "drain":
        match = _BOX.fullmatch(value)
        if match is None:
            raise InputError(refusal(change, "drain=3 (boxes) or drain=node17"))
        named = not value.isdigit()
        if named:
            _box_of(job, match[1], change)
        row = _drained(job, [int(match[1])] if named else int(value))
        return WhatIf(change=change, rows=(row,))
    if name in ("without", "slow"):
        return _lossy(job, change, name, value, healthy)
    if name == "degrade":
        box, machines = degraded(job.machines, value)
        return _ways_on(job, change, machines, [box], healthy)
    row = _row(job, "as it is", with_component(job.machines, change, name, value))
    factor = FACTOR.fullmatch(value)
    if factor is not None and float(factor[1]) <= 1:
        row = _no_gain(job, row, healthy)
    return WhatIf(change=change, rows=(row,), why_not=_why_no_gain(row))


def after_faults(job: TrainingJob, now: Topology) -> list[WhatIf]:
    """Evaluate the job as it is and laid out anew, and after faults of its cluster: kept, or with the boxes drained.

    All machines go at the pace of the slowest; boxes that lost a GPU cannot be kept.

    Args:
        now: The cluster of the job with its faults; nodes keep their names.

    Raises:
        InputError: If it is the cluster of no kind of boxes of the job, or nothing is left to run on.

    Examples:
        >>> from coppice.iteration.job.file import parse_job_record
        >>> from coppice.iteration.job.job import job_of
        >>> from coppice.topology.load import degrade
        >>> job = job_of(parse_job_record('''
        ... model.name = "gpt-7.5b"
        ... cluster = {topology = "dgx-a100", boxes = 4}
        ... layout = {tp = 4, global_batch = 64}
        ... ''', where="job.toml"))
        >>> now = degrade(job.machines.kinds[0].topology, nodes={"box1/nic2": "30%"}, remove=["box2/nic0"])
        >>> [[row.way for row in each.rows] for each in after_faults(job, now)]
        [['as it is', 'laid out anew'], ['keep', 'keep, laid out anew', 'drain']]
    """
    first = 0
    for index, kind in enumerate(job.machines.kinds):
        before = kind.topology
        if not before.node_index.keys() >= now.node_index.keys():
            first += kind.boxes
            continue
        hosts = np.unique(before.host[before.rank_nodes])
        struck = sorted(_struck(before, now) & set(hosts.tolist()))
        boxes = [first + int(np.searchsorted(hosts, host)) for host in struck]
        whole = all(name in now.node_index for name in np.array(before.node_ids)[before.rank_nodes].tolist())
        paced = paced_by(kind, now) if whole else None
        kept = None
        if paced is not None:
            kept = replace(
                job.machines, kinds=(*job.machines.kinds[:index], paced, *job.machines.kinds[index + 1 :])
            )
        healthy = _row(job, "as it is", job.machines)
        found = _ways_on(job, "faults", kept, boxes, healthy)
        return [_healthy(job, healthy, [found]), found]
    raise InputError(
        f"expected the cluster of the job, {job.machines.name}, found {now.name}: give the job's own "
        "(`cluster.topology` of its file)."
    )


def _struck(before: Topology, now: Topology) -> set[int]:
    """Hosts of nodes that are gone, or have links that are slower or gone; -1 stands for nodes of no host."""
    found = {int(before.host[v]) for v, name in enumerate(before.node_ids) if name not in now.node_index}
    where = [now.node_index.get(name, -1) for name in before.node_ids]
    for link, (a, b) in enumerate(zip(before.src.tolist(), before.dst.tolist(), strict=True)):
        at = now.link_index.get((where[a], where[b]))
        if at is None or now.gb_per_s(at) < before.gb_per_s(link):
            found.update((int(before.host[a]), int(before.host[b])))
    return found


def what_ifs(job: TrainingJob, changes: Sequence[str]) -> list[WhatIf]:
    """Evaluate the job unchanged, and after each change.

    The first answer is of no change: the job as it is, and laid out anew on what it has now. What a change costs a job
    that is laid out anew is told by that row. It is the best of the search and of the layouts that the changes found,
    so that a loss is never a gain.

    Examples:
        >>> from coppice.iteration.job.file import parse_job_record
        >>> from coppice.iteration.job.job import job_of
        >>> job = job_of(parse_job_record('''
        ... model.name = "gpt-7.5b"
        ... cluster = {topology = "dgx-a100", boxes = 4}
        ... layout = {tp = 4, global_batch = 64}
        ... ''', where="job.toml"))
        >>> healthy, lost = what_ifs(job, ["without=nic:5"])
        >>> [row.way for row in healthy.rows], healthy.best.samples_per_second >= lost.best.samples_per_second
        (['as it is', 'laid out anew'], True)
    """
    healthy = _row(job, "as it is", job.machines)
    found = [what_if(job, each, healthy=healthy) for each in changes]
    return [_healthy(job, healthy, found), *found]


def _healthy(job: TrainingJob, healthy: WhatIfRow, found: Sequence[WhatIf]) -> WhatIf:
    """The job as it is, and laid out anew in the best of the search and of the layouts that changes found."""
    rows = [_searched(job, "laid out anew", job.machines)]
    layouts = {row.layout for each in found for row in each.rows if row.searched}
    for idle in range(sum(each.boxes for each in job.machines.kinds)):
        used = without_last(job.machines, idle)
        rows += [_at(job, "laid out anew", used, each) for each in layouts if each.gpus == used.gpus]
    best = max(rows, key=lambda row: (row.fits, row.samples_per_second))
    return WhatIf(change="none", rows=(healthy, best))


def compare_kinds(job: TrainingJob) -> WhatIf | None:
    """Compare mixed machines with each kind alone in its fastest layout.

    None where there is one kind.
    """
    if len(job.machines.kinds) == 1:
        return None
    rows = [_row(job, "all boxes, at the pace of the slowest", job.machines)]
    missing = []
    for each in job.machines.kinds:
        try:
            rows.append(_searched(job, f"only {each.name}", Machines(name=each.name, kinds=(each,))))
        except InputError as error:
            missing.append(f"only {each.name}: {error}")
    return WhatIf(change="one kind of box", rows=tuple(rows), why_not=" ".join(missing))


def _row(job: TrainingJob, way: str, machines: Machines) -> WhatIfRow:
    """The job in its layout on other machines."""
    return _at(job, way, machines, job.layout)


def _no_gain(job: TrainingJob, row: WhatIfRow, healthy: WhatIfRow | None) -> WhatIfRow:
    """A row of slower machines that is no faster than the job as it is."""
    before = healthy or _row(job, "as it is", job.machines)
    if row.seconds >= before.seconds:
        return row
    return replace(
        row,
        seconds=before.seconds,
        samples_per_second=before.samples_per_second,
        decided_seconds=row.seconds,
    )


def _why_no_gain(row: WhatIfRow) -> str:
    if row.decided_seconds is None:
        return ""
    return (
        f"{row.way}: {row.policy} decides otherwise for the slower machines, and takes "
        f"{seconds_text(row.decided_seconds)} there, as it could on the machines as they are: no gain."
    )


def _at(job: TrainingJob, way: str, machines: Machines, layout: Layout) -> WhatIfRow:
    other = None if layout is job.layout else layout
    found = simulated_job(job, layout=other, machines=machines)
    return WhatIfRow(
        way=way,
        gpus=layout.gpus,
        layout=layout,
        seconds=found.seconds,
        samples_per_second=layout.global_batch / found.seconds,
        policy=found.composition.name,
        fits=found.memory_bytes <= machines.cluster.device.memory_bytes,
        searched=layout is not job.layout,
    )


def _searched(job: TrainingJob, way: str, machines: Machines) -> WhatIfRow:
    """Highest throughput over fitting layouts, batches that replicas divide, and optionally idle boxes."""
    fused = job.layout.fused_attention
    found: list[tuple[float, Layout, Machines]] = []
    refused: InputError | None = None
    boxes = sum(each.boxes for each in machines.kinds)
    for idle in range(min(boxes, _IDLE)):
        used = without_last(machines, idle)
        # With fewer GPUs each would have to do more than any that was found.
        if found and max(rate for rate, _, _ in found) >= used.gpus * _MORE * max(
            rate / layout.gpus for rate, layout, _ in found
        ):
            break
        for batch in _batches(job.layout.global_batch, used.gpus):
            try:
                best = search_layouts(job.model, used.cluster, used.gpus, batch, fused_attention=fused).found[
                    0
                ]
            except InputError as error:
                refused = refused or error
                continue
            found.append((batch / best.estimate.seconds, best.layout, used))
    if not found:
        raise refused or InputError(refusal(machines.name, "a layout"))
    _, layout, used = max(found, key=lambda each: each[0])
    return _at(job, way, used, layout)


def _batches(batch: int, gpus: int) -> list[int]:
    """The batch, and the largest smaller ones that some number of replicas divides."""
    rounded = {batch // replicas * replicas for replicas in range(1, gpus + 1) if gpus % replicas == 0}
    return sorted(rounded - {0}, reverse=True)[:_BATCHES]


def _drained(job: TrainingJob, boxes: Sequence[int] | int) -> WhatIfRow:
    """The job in the best layout without some boxes: given ones, or so many of the last."""
    kinds = list(job.machines.kinds)
    kind_of = [kind for kind in range(len(kinds)) for _ in range(kinds[kind].boxes)]
    count = boxes if isinstance(boxes, int) else len(boxes)
    lost = kind_of[::-1][:count] if isinstance(boxes, int) else [kind_of[box] for box in boxes]
    for each in lost:
        kinds[each] = replace(kinds[each], boxes=kinds[each].boxes - 1)
    remaining = tuple(each for each in kinds if each.boxes)
    if not remaining or count > len(kind_of):
        raise InputError(f"expected boxes that remain of {len(kind_of)}, found {count} drained: drain fewer.")
    machines = Machines(name=f"{job.machines.name} without {count}", kinds=remaining)
    return _searched(job, "drain", machines)


def _box_of(job: TrainingJob, number: str | None, change: str) -> int:
    """Index of a box; the first where none is named."""
    boxes = sum(each.boxes for each in job.machines.kinds)
    if number is not None and int(number) >= boxes:
        raise InputError(
            f"expected a box of {boxes}, node0 to node{boxes - 1}, found node{number} in {change!r}."
        )
    return int(number or 0)


def _lossy(job: TrainingJob, change: str, name: str, value: str, healthy: WhatIfRow | None) -> WhatIf:
    """Evaluate a slow or lost NIC, GPU or box: keep or drain."""
    shape = (
        "without=nic:5, without=gpu:3@node17 or without=node17"
        if name == "without"
        else "slow=nic:5:x0.5 or slow=node17:x0.8"
    )
    text, factor = value, 1.0
    if name == "slow":
        text, _, last = value.rpartition(":")
        match = FACTOR.fullmatch(last)
        if match is None or not 0 < float(match[1]) <= 1:
            raise InputError(refusal(change, f"{shape}, with a factor up to 1"))
        factor = float(match[1])
    match = _PART.fullmatch(text)
    if match is None:
        raise InputError(refusal(change, shape))
    part, number = match[1], match[2]
    box = _box_of(job, number if part in ("node", "box") else match[3], change)
    kind = [each for each in job.machines.kinds for _ in range(each.boxes)][box]
    there = {"nic": kind.nics, "gpu": kind.cluster.device.box}.get(part)
    if there is not None and int(number or 0) >= there:
        raise InputError(
            f"expected a {part} of a box, {part}:0 to {part}:{there - 1}, found {part}:{number} in {change!r}."
        )
    kept = at_pace_of(job.machines, part, box, factor if name == "slow" else None)
    return _ways_on(job, change, kept, [box], healthy)


def _ways_on(
    job: TrainingJob, change: str, kept: Machines | None, boxes: Sequence[int], healthy: WhatIfRow | None
) -> WhatIf:
    """Options after a loss: keep the machines, if the job can go on, or drain boxes."""
    rows: list[WhatIfRow] = []
    missing = ""
    if kept is not None:
        rows.append(_no_gain(job, _row(job, "keep", kept), healthy))
        missing = _why_no_gain(rows[0])
        rows.append(_searched(job, "keep, laid out anew", kept))
    try:
        if boxes:
            rows.append(_drained(job, boxes))
    except InputError as error:
        if not rows:
            raise
        missing = f"{missing} drain: {error}".strip()
    return WhatIf(change=change, rows=tuple(rows), why_not=missing)
