"""One door for all exports: the source read, the options checked, and the writer of the format called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby, pairwise
from math import isqrt
from pathlib import Path
from typing import Any

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.export.formats import FORMATS, Exported, ExportFormat, SizeSpan
from coppice.options import recorded
from coppice.program.dialects.thread_blocks.program import Program
from coppice.schedule.files.plan_file import FORMAT
from coppice.schedule.files.set_file import (
    PlanRange,
    PlanSet,
    TimedSize,
    file_stem,
    is_plan_set,
    plan_set_of,
    range_words,
)
from coppice.schedule.plan import Plan
from coppice.text import plural, suggestion
from coppice.topology.model import Topology

_RENAMED = {"lanes": "communicators"}
"""Options by their names in earlier versions."""


@checked
def export(
    source: Any,
    format: str,  # noqa: A002 (what everybody calls it)
    path: str | os.PathLike[str] | None = None,
    *,
    on_stage: Callable[[str], None] | None = None,
    **options: Any,
) -> Exported:
    """Make a file for a runtime, a library or a launcher, and write it if a path is given.

    Args:
        source: A plan, or anything with a ``plan``; for some formats a topology; or the name of a plan file, and for
            ``msccl-xml`` also of an MSCCL XML file of another target (``-`` is standard input). Of a set of plans, or
            its folder, a file is made for each range of sizes, in a folder; or one of the plan for the `size`.
        format: One of :data:`~coppice.export.formats.FORMATS`.
        path: File to write, a folder for ``chakra`` and for sets of plans; None only returns what would be written.
        on_stage: Called with what goes on.
        options: Options of the format, as values or as text: numbers, names, sizes in bytes or such as ``"1M:1G"``.
            None stands for an option that is not given.

    Returns:
        The text, or the files, and notes for the user.

    Raises:
        CheckError: If the plan does not fit the runtime; with the limit, by how much, and the next step.
        InputError: If there is no such format, the source is not what it is made of, an option is unknown or cannot be
            used, or the file cannot be written.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> export(preset("fat-tree", leaves=2, gpus_per_leaf=1), "rank-order", launcher="mpich").text.splitlines()
        ['host0:1', 'host1:1']
    """
    if format not in FORMATS:
        raise InputError(f"there is no export {format!r}: {suggestion(format, FORMATS)}")
    chosen = FORMATS[format]
    named = {_RENAMED.get(name, name): value for name, value in options.items()}
    record = recorded(chosen.record, named, owner=format)
    told = {"on_stage": on_stage} if chosen.tells_stages and on_stage is not None else {}
    plans = plan_set_of(source)
    if plans is None:
        made = chosen.write(_source(source, format, chosen), record, **told)
    elif chosen.set_writer:
        made = chosen.write_set(plans, record)
    elif chosen.takes_span:
        made = _of_ranges(plans, format, chosen, record, told)
    elif not chosen.takes_plan:
        made = chosen.write(plans.topology, record, **told)
    else:
        made = chosen.write(_for_one_size(plans, format, record), record, **told)
    if path is not None:
        made.write(path)
    return made


def _of_ranges(
    plans: PlanSet, name: str, chosen: ExportFormat, record: Any, told: Mapping[str, Any]
) -> Exported:
    """A file for each range of a set, with the sizes that are to use it."""
    if getattr(record, "size", None) is not None:
        raise InputError(
            "a set of plans has ranges of sizes of its own, found `size` as well: leave it out, or export one plan."
        )
    spans = [
        (each, span)
        for each in plans.ranges
        for span in _spans(
            each, by_protocol=chosen.takes_protocol and getattr(record, "protocol", None) is None
        )
    ]
    parts: dict[str, Exported] = {}
    for number, (each, span) in enumerate(spans, 1):
        if (say := told.get("on_stage")) is not None:
            say(f"making {name} for {range_words(span.first_bytes, span.last_bytes)}")
        made = chosen.write(each.plan, record, span=span, **told)
        parts[f"{number}-{file_stem(each.plan)}{made.suffix}"] = made
    texts = {part: made.text.encode() for part, made in parts.items()}
    shared = [note for note in next(iter(parts.values())).notes if _in_all(note, parts.values())]
    notes = [
        f"{part} ({range_words(span.first_bytes, span.last_bytes)}): {note}"
        for (part, made), (_, span) in zip(parts.items(), spans, strict=True)
        for note in made.notes
        if note not in shared
    ]
    return Exported(
        files={part: partial(_whole, text) for part, text in texts.items()},
        notes=(*shared, *notes),
        summary=f"{plural(len(parts), 'file')}, one for each range of sizes,",
        parts=parts,
    )


def _spans(each: PlanRange, *, by_protocol: bool) -> Iterator[SizeSpan]:
    """A range of a set as sizes of one file, or of one in each protocol.

    LL moves small messages fast and halves the rate of large ones, so that no file is for both; files meet near the
    geometric mean of the sizes that were simulated. What was the fastest in LL128 is left to Simple, since not every
    machine has LL128.
    """

    def protocol_of(row: TimedSize) -> str | None:
        return None if not by_protocol or row.protocol is None else "LL" if row.protocol == "ll" else "Simple"

    runs = [(name, list(rows)) for name, rows in groupby(each.sizes, key=protocol_of)] or [(None, [])]
    firsts = [each.first_bytes, *(_between(one[-1], two[0]) for (_, one), (_, two) in pairwise(runs))]
    lasts = [*(first - 1 for first in firsts[1:]), each.last_bytes]
    for (name, rows), first, last in zip(runs, firsts, lasts, strict=True):
        sizes = tuple(row.size_bytes for row in rows if row.size_bytes)
        yield SizeSpan(first_bytes=first, last_bytes=last, sizes=sizes, protocol=name)


def _between(one: TimedSize, two: TimedSize) -> int:
    middle = isqrt(one.size_bytes * two.size_bytes)
    round_size = 1 << max(0, middle.bit_length() - 1)
    return round_size if round_size > one.size_bytes else max(one.size_bytes + 1, middle)


def _in_all(note: str, parts: Iterable[Exported]) -> bool:
    return all(note in part.notes for part in parts)


def _whole(text: bytes) -> Iterator[bytes]:
    """The content of a file in one piece."""
    yield text


def _for_one_size(plans: PlanSet, name: str, record: Any) -> Plan:
    """The plan of a set for the size that is exported."""
    size = getattr(record, "size", None)
    if size is None and len(plans.plans) > 1:
        raise InputError(
            f"{name} is made of one plan, found a set of {len(plans.plans)}: name one of its files"
            f"{', or give `size`' if hasattr(record, 'size') else ''}."
        )
    return plans.at(size or 0)


def is_plan_file(path: str) -> bool:
    """Whether a name is that of a plan file or a set of plans, rather than of a topology; standard input is none."""
    if is_plan_set(path):
        return True
    if path == "-" or not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            start = file.read(4096).lstrip()
    except OSError:
        return False
    return start.startswith(b"{") and f'"{FORMAT}"'.encode() in start


def _source(source: Any, name: str, chosen: ExportFormat) -> Plan | Topology | Program:
    """What the format is made of."""
    found = getattr(source, "plan", source)
    if isinstance(found, str | os.PathLike):
        found = chosen.read(os.fspath(found))
    if isinstance(found, Plan):
        return found if chosen.takes_plan else found.topology
    if isinstance(found, Program) and chosen.takes_programs:
        return found
    if isinstance(found, Topology) and not chosen.takes_plan:
        return found
    wanted = "a plan" if chosen.takes_plan else "a topology or a plan"
    raise InputError(
        f"{name} is made of {wanted}, found {type(source).__name__}: make one with `coppice plan ... -o plan.json`."
    )
