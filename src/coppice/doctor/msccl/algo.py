"""Doctor rules about ``<algo>`` and ``<gpu>``: required attributes, names, counts of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coppice.doctor.msccl.diagnose import Case, Complaint, Rule, Severity
from coppice.export.msccl.document import ABSENT

__all__ = ["RULES", "whole"]

_PROTOCOLS = ("Simple", "LL", "LL128")


def whole(case: Case, key: str) -> int | None:
    """A number of ``<algo>``, None where it is missing or no number."""
    text = case.document.algo.get(key, "")
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 else None


def _required(case: Case) -> Iterator[Complaint]:
    for key in case.target.required:
        if key not in case.document.algo:
            yield case.document.algo_line, f"<algo> has no attribute {key}", f'add {key}="..."'


def _numbers(case: Case) -> Iterator[Complaint]:
    keys = ("nchannels", "nchunksperloop", "ngpus", "inplace", "outofplace", "minBytes", "maxBytes")
    for key in keys:
        text = case.document.algo.get(key)
        if text is None:
            continue
        if whole(case, key) is None:
            yield (
                case.document.algo_line,
                f"{key} is {text[:40]!r}, no integer, which the loader reads as far as it goes or as 0",
                "write an integer",
            )
        elif text.lstrip("-").startswith("0") and len(text.lstrip("-")) > 1:
            yield (
                case.document.algo_line,
                f"{key} is {text[:40]!r}: a leading zero means base 8 to the loader",
                "remove the zero",
            )


def _missing(case: Case) -> Iterator[Complaint]:
    for defect in case.document.defects:
        if defect.kind == "missing":
            yield defect.line, defect.text, "add it; the loaders have no default values there"


def _integers(case: Case) -> Iterator[Complaint]:
    for defect in case.document.defects:
        if defect.kind in ("number", "octal"):
            yield (
                defect.line,
                f"{defect.text}; the loader reads a leading zero as base 8, and anything else as far as it goes",
                "write a plain integer",
            )


def _protocol(case: Case) -> Iterator[Complaint]:
    name = case.document.algo.get("proto")
    if name is not None and name not in _PROTOCOLS:
        yield (
            case.document.algo_line,
            f"proto is {name[:40]!r}; the loader knows Simple, LL and LL128, in this spelling",
            "choose one of them",
        )


def _collective(case: Case) -> Iterator[Complaint]:
    name = case.document.algo.get("coll")
    target = case.target
    known = (*target.collectives.values(), *target.other_collectives)
    if name is not None and name not in known:
        twin = {word.replace("_", ""): word for word in known}.get(name.replace("_", ""))
        fix = f"write {twin}" if twin else f"use one of {', '.join(known)}"
        yield case.document.algo_line, f"coll is {name[:40]!r}, which {target.title} does not know", fix


def _channels(case: Case) -> Iterator[Complaint]:
    stated = whole(case, "nchannels")
    used = max(case.document.tb["chan"], default=-1) + 1
    if stated is None:
        return
    if stated > case.target.max_channels or stated < 1:
        yield (
            case.document.algo_line,
            f"nchannels is {stated}; {case.target.title} has 1 to {case.target.max_channels}",
            f"use {case.target.max_channels} channels at most",
        )
    if used > stated:
        yield (
            case.document.algo_line,
            f"nchannels is {stated}, but channel {used - 1} is used: its connections are never made and the ranks hang",
            f'write nchannels="{used}"',
        )


def _channels_idle(case: Case) -> Iterator[Complaint]:
    stated = whole(case, "nchannels")
    used = max(case.document.tb["chan"], default=-1) + 1
    if stated is not None and 0 < used < stated:
        yield (
            case.document.algo_line,
            f"nchannels is {stated}, but only {used} are used: the communicator must have {stated} for nothing",
            f'write nchannels="{used}"',
        )


def _gpus(case: Case) -> Iterator[Complaint]:
    document = case.document
    stated = whole(case, "ngpus")
    for rank, number in Counter(document.gpu["id"]).items():
        if number > 1 and rank != ABSENT:
            row = document.gpu["id"].index(rank)
            yield document.gpu["line"][row], f"gpu {rank} stands there {number} times", "keep one"
    if stated is None:
        return
    present = set(document.gpu["id"])
    missing = [rank for rank in range(min(stated, 10**6)) if rank not in present]
    if missing:
        more = f" and {len(missing) - 1} others" if missing[1:] else ""
        yield (
            document.algo_line,
            (
                f"ngpus is {stated}, but gpu {missing[0]} is missing{more}: "
                "such a rank does nothing and its peers hang"
            ),
            "give every rank a <gpu>",
        )
    for row, rank in enumerate(document.gpu["id"]):
        if rank >= stated or (rank < 0 and rank != ABSENT):
            yield (
                document.gpu["line"][row],
                f"gpu {rank} is no rank below ngpus = {stated}",
                "remove it, or mend ngpus",
            )


def _chunks(case: Case) -> Iterator[Complaint]:
    chunks = whole(case, "nchunksperloop")
    if chunks is not None and chunks < 1:
        yield (
            case.document.algo_line,
            f"nchunksperloop is {chunks}: the loader divides by it",
            "use 1 or more",
        )


def _slots(case: Case) -> Iterator[Complaint]:
    document = case.document
    chunks, ranks = whole(case, "nchunksperloop"), whole(case, "ngpus")
    name = document.algo.get("coll", "")
    scales = {"i_chunks": ranks if name == "allgather" else 1, "o_chunks": ranks if "scatter" in name else 1}
    if (
        chunks is None
        or ranks is None
        or name not in ("allreduce", "allgather", "reduce_scatter", "reducescatter")
    ):
        return
    for row, line in enumerate(document.gpu["line"]):
        for key, scale in scales.items():
            found = document.gpu[key][row]
            if found > 0 and found * (scale or 1) != chunks:
                yield (
                    line,
                    f"{key} is {found} where {name} of {chunks} chunks on {ranks} ranks has {chunks // (scale or 1)}",
                    "make them agree (0 for a buffer that is not used is allowed)",
                )


def _slots_refused(case: Case) -> Iterator[Complaint]:
    if case.target.checks_chunks:
        yield from _slots(case)


def _slots_doubtful(case: Case) -> Iterator[Complaint]:
    if not case.target.checks_chunks:
        yield from _slots(case)


def _scratch(case: Case) -> Iterator[Complaint]:
    for row, number in enumerate(case.document.gpu["s_chunks"]):
        if number < 0 and number != ABSENT:
            yield case.document.gpu["line"][row], f"s_chunks is {number}", "use 0 or more"


def _name(case: Case) -> Iterator[Complaint]:
    name, most = case.document.algo.get("name"), case.target.max_name
    if name is not None and most is not None and len(name) > most:
        yield case.document.algo_line, f"name has {len(name)} characters, {most} are kept", "shorten it"


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
RULES = (
    Rule("A01", _E, "required attributes of <algo>", "the file is refused", _required),
    Rule("A02", _E, "numbers of <algo>", "another number is used", _numbers),
    Rule("A03", _E, "required attributes of <gpu>, <tb>, <step>", "the file is refused", _missing),
    Rule("A04", _E, "numbers of <gpu>, <tb>, <step>", "another number is used", _integers),
    Rule("A05", _E, "protocol", "the file is refused", _protocol),
    Rule("A06", _E, "name of the collective", "the file is refused", _collective),
    Rule("A07", _E, "number of channels", "the file is refused, or ranks hang", _channels),
    Rule("A08", _N, "idle channels", "smaller communicators cannot use the file", _channels_idle),
    Rule("A09", _E, "one <gpu> per rank", "ranks hang", _gpus),
    Rule("A10", _E, "chunks", "the runtime divides by zero", _chunks),
    Rule("A11", _E, "slots agree with the collective (checked)", "the file is refused", _slots_refused),
    Rule(
        "A12",
        _W,
        "slots agree with the collective",
        "memory beyond the buffers may be touched",
        _slots_doubtful,
    ),
    Rule("A13", _E, "scratch slots", "the file is refused", _scratch),
    Rule("A14", _N, "length of the name", "the name is cut", _name),
)
