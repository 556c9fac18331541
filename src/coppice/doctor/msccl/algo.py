"""Doctor rules about ``<algo>`` and ``<gpu>``: required attributes, names, counts of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint
from coppice.doctor.msccl.file import RULES, MscclFile
from coppice.export.formats import PROTOCOLS
from coppice.export.msccl.document import ABSENT


@RULES.rule("A01", ERROR, "required attributes of <algo>", "the file is refused")
def _required(file: MscclFile) -> Iterator[Complaint]:
    for key in file.target.required:
        if key not in file.document.algo:
            yield file.document.algo_line, f"<algo> has no attribute {key}", f'add {key}="..."'


@RULES.rule("A02", ERROR, "numbers of <algo>", "another number is used")
def _numbers(file: MscclFile) -> Iterator[Complaint]:
    keys = ("nchannels", "nchunksperloop", "ngpus", "inplace", "outofplace", "minBytes", "maxBytes")
    for key in keys:
        text = file.document.algo.get(key)
        if text is None:
            continue
        if file.integer(key) is None:
            words = f"{key} is {text[:40]!r}, no integer, which the loader reads as far as it goes or as 0"
            yield file.document.algo_line, words, "write an integer"
        elif text.lstrip("-").startswith("0") and len(text.lstrip("-")) > 1:
            words = f"{key} is {text[:40]!r}: a leading zero means base 8 to the loader"
            yield file.document.algo_line, words, "remove the zero"


@RULES.rule("A03", ERROR, "required attributes of <gpu>, <tb>, <step>", "the file is refused")
def _missing(file: MscclFile) -> Iterator[Complaint]:
    for defect in file.document.defects:
        if defect.kind == "missing":
            yield defect.line, defect.text, "add it; the loaders have no default values there"


@RULES.rule("A04", ERROR, "numbers of <gpu>, <tb>, <step>", "another number is used")
def _integers(file: MscclFile) -> Iterator[Complaint]:
    for defect in file.document.defects:
        if defect.kind in ("number", "octal"):
            text = f"{defect.text}; the loader reads a leading zero as base 8, and anything else as far as it goes"
            yield defect.line, text, "write a plain integer"


@RULES.rule("A05", ERROR, "protocol", "the file is refused")
def _protocol(file: MscclFile) -> Iterator[Complaint]:
    name = file.document.algo.get("proto")
    if name is not None and name not in PROTOCOLS:
        text = f"proto is {name[:40]!r}; the loader knows Simple, LL and LL128, in this spelling"
        yield file.document.algo_line, text, "choose one of them"


@RULES.rule("A06", ERROR, "name of the collective", "the file is refused")
def _collective(file: MscclFile) -> Iterator[Complaint]:
    name = file.document.algo.get("coll")
    target = file.target
    known = (*target.collectives.values(), *target.other_collectives)
    if name is not None and name not in known:
        spelling = {word.replace("_", ""): word for word in known}.get(name.replace("_", ""))
        fix = f"write {spelling}" if spelling else f"use one of {', '.join(known)}"
        yield file.document.algo_line, f"coll is {name[:40]!r}, which {target.title} does not know", fix


@RULES.rule("A07", ERROR, "number of channels", "the file is refused, or ranks hang")
def _channels(file: MscclFile) -> Iterator[Complaint]:
    stated = file.integer("nchannels")
    used = max(file.document.tb["chan"], default=-1) + 1
    if stated is None:
        return
    if stated > file.target.max_channels or stated < 1:
        text = f"nchannels is {stated}; {file.target.title} has 1 to {file.target.max_channels}"
        yield file.document.algo_line, text, f"use {file.target.max_channels} channels at most"
    if used > stated:
        text = (
            f"nchannels is {stated}, but channel {used - 1} is used: "
            "its connections are never made and the ranks hang"
        )
        yield file.document.algo_line, text, f'write nchannels="{used}"'


@RULES.rule("A08", NOTE, "idle channels", "smaller communicators cannot use the file")
def _channels_idle(file: MscclFile) -> Iterator[Complaint]:
    stated = file.integer("nchannels")
    used = max(file.document.tb["chan"], default=-1) + 1
    if stated is not None and 0 < used < stated:
        text = f"nchannels is {stated}, but only {used} are used: the communicator must have {stated} for nothing"
        yield file.document.algo_line, text, f'write nchannels="{used}"'


@RULES.rule("A09", ERROR, "one <gpu> per rank", "ranks hang")
def _gpus(file: MscclFile) -> Iterator[Complaint]:
    document = file.document
    stated = file.integer("ngpus")
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
        text = (
            f"ngpus is {stated}, but gpu {missing[0]} is missing{more}: "
            "such a rank does nothing and its peers hang"
        )
        yield document.algo_line, text, "give every rank a <gpu>"
    for row, rank in enumerate(document.gpu["id"]):
        if rank >= stated or (rank < 0 and rank != ABSENT):
            text = f"gpu {rank} is no rank below ngpus = {stated}"
            yield document.gpu["line"][row], text, "remove it, or mend ngpus"


@RULES.rule("A10", ERROR, "chunks", "the runtime divides by zero")
def _chunks(file: MscclFile) -> Iterator[Complaint]:
    chunks = file.integer("nchunksperloop")
    if chunks is not None and chunks < 1:
        text = f"nchunksperloop is {chunks}: the loader divides by it"
        yield file.document.algo_line, text, "use 1 or more"


def _slots(file: MscclFile) -> Iterator[tuple[int, str, str]]:
    document = file.document
    chunks, ranks = file.integer("nchunksperloop"), file.integer("ngpus")
    name = document.algo.get("coll", "")
    known = (*file.target.collectives.values(), *file.target.other_collectives)
    if not chunks or not ranks or name not in known or name in ("send", "recv", "alltoallv"):
        return
    whole, share = Fraction(chunks), Fraction(chunks, ranks)
    due = {
        "allgather": (share, whole),
        "reduce_scatter": (whole, share),
        "reducescatter": (whole, share),
        "gather": (whole, whole * ranks),
        "scatter": (whole * ranks, whole),
    }.get(name, (whole, whole))
    for row, line in enumerate(document.gpu["line"]):
        for key, slots in zip(("i_chunks", "o_chunks"), due, strict=True):
            found = document.gpu[key][row]
            if found > 0 and found != slots:
                text = f"{key} is {found} where {name} of {chunks} chunks on {ranks} ranks has {slots}"
                yield line, text, "make them agree (0 for a buffer that is not used is allowed)"


@RULES.rule("A11", ERROR, "slots agree with the collective (checked)", "the file is refused")
def _slots_refused(file: MscclFile) -> Iterator[Complaint]:
    if file.target.checks_chunks:
        yield from _slots(file)


@RULES.rule("A12", WARNING, "slots agree with the collective", "memory beyond the buffers may be touched")
def _slots_doubtful(file: MscclFile) -> Iterator[Complaint]:
    if file.target.checks_chunks:
        return
    by_share = file.document.algo.get("coll") in ("gather", "scatter")
    for line, text, fix in _slots(file):
        if by_share:
            text = f"{text}, whose chunks are counted by the share of one rank: another part of it is moved"
        yield ERROR if by_share else WARNING, line, text, fix


@RULES.rule("A13", ERROR, "scratch slots", "the file is refused")
def _scratch(file: MscclFile) -> Iterator[Complaint]:
    for row, number in enumerate(file.document.gpu["s_chunks"]):
        if number < 0 and number != ABSENT:
            yield file.document.gpu["line"][row], f"s_chunks is {number}", "use 0 or more"


@RULES.rule("A14", NOTE, "length of the name", "the name is cut")
def _name(file: MscclFile) -> Iterator[Complaint]:
    name, most = file.document.algo.get("name"), file.target.max_name
    if name is not None and most is not None and len(name) > most:
        yield file.document.algo_line, f"name has {len(name)} characters, {most} are kept", "shorten it"
