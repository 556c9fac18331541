"""Doctor rules about selection: whether calls of a size, number of ranks and buffer mode use the file."""

from __future__ import annotations

from collections.abc import Iterator

from coppice.collectives import Collective
from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint
from coppice.doctor.msccl.text import RULES, MscclFile
from coppice.export.msccl.targets import shares
from coppice.fitting.trees import ELEMENT_BYTES

_CORRUPTED_BELOW = 512 << 10
_GPUS_OF_NODE = 8
_BELOW = ", and only smaller messages use it"
_MOST_SCRATCH = 80 << 30
_MUCH_SCRATCH = 8 << 30
"""Scratch memory that no GPU has that ran the loader which allocates it, and a tenth of it."""


def reason_not_used(file: MscclFile, size: int) -> str | None:
    """Why a call of ``size`` bytes would not use the file; None if it would.

    Sizes are the whole of all ranks, in elements of 4 bytes; the loaders count those of gather and scatter by the share
    of one rank.

    Args:
        file: The file, the target and the ranks.
        size: M in bytes.
    """
    ranks = file.integer("ngpus")
    if file.ranks is not None and ranks is not None and file.ranks != ranks:
        return f"it is for {ranks} ranks, not {file.ranks}"
    low, high = _range(file)
    collective = _collective(file)
    parts = shares(collective, ranks) if collective is not None and ranks is not None and ranks > 0 else 1
    if size % parts:
        return f"it is no multiple of {parts} ranks"
    size //= parts
    if size < low:
        return f"minBytes is {low}"
    if high is not None and size > high:
        return f"maxBytes is {high + file.target.below_max}{_BELOW if file.target.below_max else ''}"
    if size == 0:
        return "there is nothing to move"
    chunks = file.integer("nchunksperloop")
    if chunks is not None and chunks > 0 and size % (chunks * ELEMENT_BYTES):
        return f"it is no multiple of {chunks} chunks x {ELEMENT_BYTES} bytes"
    return None


def _range(file: MscclFile) -> tuple[int, int | None]:
    """Smallest and largest size that uses the file, None where there is no upper limit."""
    low, stated = file.integer("minBytes") or 0, _stated_max(file)
    return low, None if stated is None else file.target.largest_of(stated)


def _stated_max(file: MscclFile) -> int | None:
    """``maxBytes``, or what stands for it where it is missing."""
    stated = file.integer("maxBytes")
    return file.target.default_max_bytes if stated is None else stated


def _collective(file: MscclFile) -> Collective | None:
    name = file.document.algo.get("coll")
    for collective, word in file.target.collectives.items():
        if word == name:
            return collective
    return None


@RULES.rule("U01", ERROR, "ranks of the communicator", "the file is never used")
def _ranks(file: MscclFile) -> Iterator[Complaint]:
    ranks = file.integer("ngpus")
    if file.ranks is not None and ranks is not None and file.ranks != ranks:
        text = f"ngpus is {ranks}, the communicator has {file.ranks} ranks"
        yield file.document.algo_line, text, f"export a plan for {file.ranks} ranks"


@RULES.rule("U02", ERROR, "in place or out of place", "the file is never used")
def _places(file: MscclFile) -> Iterator[Complaint]:
    in_place, out_of_place = file.integer("inplace"), file.integer("outofplace")
    if in_place == 0 and out_of_place == 0:
        text = "inplace and outofplace are both 0: no call ever takes the file"
        yield file.document.algo_line, text, "set one to 1"


@RULES.rule("U03", NOTE, "in place and out of place", "half of the calls do not use the file")
def _one_place(file: MscclFile) -> Iterator[Complaint]:
    in_place, out_of_place = file.integer("inplace"), file.integer("outofplace")
    if "outofplace" not in file.target.required:
        out_of_place = None if in_place is None else int(not in_place)
    if in_place is None or out_of_place is None or bool(in_place) == bool(out_of_place):
        return
    word, other = ("in", "out of") if in_place else ("out of", "in")
    text = f"only calls {word} place take the file; calls {other} place run the library's own algorithm"
    yield file.document.algo_line, text, f"call {word} place, or add a second file for {other} place"


@RULES.rule("U04", ERROR, "a range of sizes", "the file is refused or never used")
def _empty_range(file: MscclFile) -> Iterator[Complaint]:
    low, high = _range(file)
    if low < 0 or (high is not None and (high < low or high < 1)):
        below = _BELOW if file.target.below_max else ""
        yield (
            file.document.algo_line,
            f"minBytes {low} .. maxBytes {_stated_max(file)} holds no size{below}",
            f'write minBytes="0" maxBytes="{file.target.unlimited_bytes}" for all sizes',
        )


@RULES.rule("U05", WARNING, "default of maxBytes", "large messages do not use the file")
def _default_range(file: MscclFile) -> Iterator[Complaint]:
    default = file.target.default_max_bytes
    if default is not None and "maxBytes" not in file.document.algo:
        text = f"without maxBytes, messages of {default >> 20} MiB and more silently run the library's own algorithm"
        yield file.document.algo_line, text, f'add maxBytes="{file.target.unlimited_bytes}"'


@RULES.rule("U06", WARNING, "roots are not compared", "wrong results for other roots")
def _root(file: MscclFile) -> Iterator[Complaint]:
    collective = _collective(file)
    if collective is not None and collective.rooted:
        text = (
            f"the loader does not compare roots: a {collective} from any root takes this file, "
            "which is right for one"
        )
        yield file.document.algo_line, text, "let the job use that root alone"


@RULES.rule("U07", WARNING, "shares of ranks", "older releases do not use the file")
def _small_shares(file: MscclFile) -> Iterator[Complaint]:
    collective, chunks, ranks = _collective(file), file.integer("nchunksperloop"), file.integer("ngpus")
    if not chunks or not ranks or chunks < 1 or ranks < 1 or collective is None or not collective.sharded:
        return
    if collective in (Collective.GATHER, Collective.SCATTER):
        return
    bad = [
        size
        for size in file.sizes
        if reason_not_used(file, size) is None and (size // ELEMENT_BYTES // ranks) % chunks
    ]
    if bad:
        more = f" and {len(bad) - 1} other sizes" if bad[1:] else ""
        text = (
            f"at {bad[0]} bytes{more} the elements of one rank are no "
            f"multiple of nchunksperloop = {chunks}, which releases before 2024 ask for"
        )
        yield file.document.algo_line, text, "use a recent release, or a plan with fewer chunks"


@RULES.rule("U08", NOTE, "operators", "other operators do not use the file")
def _operators(file: MscclFile) -> Iterator[Complaint]:
    collective = _collective(file)
    if collective is not None and collective.reduces:
        text = "only sum, prod, min and max take the file; avg and operators of the user's own do not"
        yield file.document.algo_line, text, "divide after a sum"


@RULES.rule("U11", WARNING, "LL on MI350X and MI355X", "results are wrong now and then")
def _corrupted(file: MscclFile) -> Iterator[Complaint]:
    """The release notes of ROCm 7.1.1: about 2% of runs of all-reduces of one node, below 512 KiB."""
    low, high = _range(file)
    asked = [size for size in file.sizes if size < _CORRUPTED_BELOW and reason_not_used(file, size) is None]
    if (
        file.target.name != "rccl"
        or file.document.algo.get("proto") != "LL"
        or _collective(file) is not Collective.ALL_REDUCE
        or (file.integer("ngpus") or 0) > _GPUS_OF_NODE
        or low >= _CORRUPTED_BELOW
        or (file.sizes and not asked)
    ):
        return
    text = (
        "RCCL before ROCm 7.1.1 gives wrong results in about 2% of all-reduces of one node with LL below 512 KiB on "
        "MI350X and MI355X"
    )
    small = high is not None and high < _CORRUPTED_BELOW
    instead = "take Simple" if small else f'write minBytes="{_CORRUPTED_BELOW}"'
    yield file.document.algo_line, text, f"use ROCm 7.1.1 or later on those, or {instead}"


@RULES.rule("U10", ERROR, "scratch memory at start", "communicators cannot be made, or memory is short")
def _scratch_at_start(file: MscclFile) -> Iterator[Complaint]:
    target, chunks, stated = file.target, file.integer("nchunksperloop"), _stated_max(file)
    slots = max(file.document.gpu["s_chunks"], default=0)
    if (
        not target.scratch_at_start
        or chunks is None
        or chunks < 1
        or stated is None
        or min(stated, slots) < 1
    ):
        return
    taken = target.scratch_bytes(stated, slots, chunks)
    text = (
        f"when a communicator is made, {taken:,} bytes of scratch memory are allocated on a GPU: maxBytes {stated} x "
        f"{slots} slots / {chunks} chunks"
    )
    fix = "write a smaller maxBytes, that of the largest message and one more"
    line = file.document.algo_line
    if stated * slots >= 2**64:
        yield ERROR, line, f"{text}, counted in 64 bits, which that passes", fix
    elif taken > _MUCH_SCRATCH:
        yield ERROR if taken > _MOST_SCRATCH else WARNING, line, text, fix
    else:
        yield NOTE, line, text, fix


@RULES.rule("U09", NOTE, "how to use it", "the file is ignored")
def _switches(file: MscclFile) -> Iterator[Complaint]:
    target = file.target
    text = f"{target.title} uses files only when told so ({target.status}); read by {target.versions}"
    yield 0, text, f"set {target.switches}, and NCCL_DEBUG=INFO to see whether it is used"
