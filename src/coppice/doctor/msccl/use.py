"""Doctor rules about use: whether calls of this size, on this many ranks, in place or not, take the file."""

from __future__ import annotations

from collections.abc import Iterator

from coppice.collectives import Collective
from coppice.doctor.msccl.algo import whole
from coppice.doctor.msccl.diagnose import Case, Complaint, Rule, Severity
from coppice.fitting.trees import ELEMENT_BYTES

__all__ = ["RULES", "reason_not_used"]


def reason_not_used(case: Case, size: int) -> str | None:
    """Why a call of ``size`` bytes would not take the file; None if it would.

    Sizes are counted as the loaders do, the whole of all ranks in all_gather, reduce_scatter and all_to_all, in
    elements of 4 bytes.

    Args:
        case: The file, the target and the ranks.
        size: M in bytes.
    """
    ranks = whole(case, "ngpus")
    if case.ranks is not None and ranks is not None and case.ranks != ranks:
        return f"it is for {ranks} ranks, not {case.ranks}"
    low, high = _range(case)
    if size < low:
        return f"minBytes is {low}"
    if high is not None and size > high:
        return f"maxBytes is {high}"
    if size == 0:
        return "there is nothing to move"
    chunks = whole(case, "nchunksperloop")
    if chunks is not None and chunks > 0 and size % (chunks * ELEMENT_BYTES):
        return f"it is no multiple of {chunks} chunks x {ELEMENT_BYTES} bytes"
    return None


def _range(case: Case) -> tuple[int, int | None]:
    """Smallest and largest size as the loader takes them."""
    low, high = whole(case, "minBytes") or 0, whole(case, "maxBytes")
    if high is None:
        return low, case.target.default_max_bytes
    return low, None if high == 0 and case.target.unlimited_bytes == 0 else high


def _collective(case: Case) -> Collective | None:
    name = case.document.algo.get("coll")
    for collective, word in case.target.collectives.items():
        if word == name:
            return collective
    return None


def _ranks(case: Case) -> Iterator[Complaint]:
    ranks = whole(case, "ngpus")
    if case.ranks is not None and ranks is not None and case.ranks != ranks:
        yield (
            case.document.algo_line,
            f"ngpus is {ranks}, the communicator has {case.ranks} ranks",
            f"export a plan for {case.ranks} ranks",
        )


def _places(case: Case) -> Iterator[Complaint]:
    in_place, out_of_place = whole(case, "inplace"), whole(case, "outofplace")
    if in_place == 0 and out_of_place == 0:
        yield (
            case.document.algo_line,
            "inplace and outofplace are both 0: no call ever takes the file",
            "set one to 1",
        )


def _one_place(case: Case) -> Iterator[Complaint]:
    in_place, out_of_place = whole(case, "inplace"), whole(case, "outofplace")
    if "outofplace" not in case.target.required:
        out_of_place = None if in_place is None else int(not in_place)
    if in_place is None or out_of_place is None or bool(in_place) == bool(out_of_place):
        return
    word, other = ("in", "out of") if in_place else ("out of", "in")
    yield (
        case.document.algo_line,
        f"only calls {word} place take the file; calls {other} place run the library's own algorithm",
        f"call {word} place, or add a second file for {other} place",
    )


def _empty_range(case: Case) -> Iterator[Complaint]:
    low, high = _range(case)
    if low < 0 or (high is not None and (high < low or high == 0)):
        yield (
            case.document.algo_line,
            f"minBytes {low} .. maxBytes {high} holds no size",
            f'write minBytes="0" maxBytes="{case.target.unlimited_bytes}" for all sizes',
        )


def _default_range(case: Case) -> Iterator[Complaint]:
    default = case.target.default_max_bytes
    if default is not None and "maxBytes" not in case.document.algo:
        yield (
            case.document.algo_line,
            f"without maxBytes, messages above {default >> 20} MiB silently run the library's own algorithm",
            f'add maxBytes="{case.target.unlimited_bytes}"',
        )


def _root(case: Case) -> Iterator[Complaint]:
    collective = _collective(case)
    if collective is not None and collective.rooted:
        yield (
            case.document.algo_line,
            f"the loader does not compare roots: a {collective} from any root takes this file, which is right for one",
            "let the job use that root alone",
        )


def _small_shares(case: Case) -> Iterator[Complaint]:
    collective, chunks, ranks = _collective(case), whole(case, "nchunksperloop"), whole(case, "ngpus")
    if not chunks or not ranks or chunks < 1 or ranks < 1 or collective is None or not collective.sharded:
        return
    if collective in (Collective.GATHER, Collective.SCATTER):
        return
    bad = [
        size
        for size in case.sizes
        if reason_not_used(case, size) is None and (size // ELEMENT_BYTES // ranks) % chunks
    ]
    if bad:
        more = f" and {len(bad) - 1} other sizes" if bad[1:] else ""
        yield (
            case.document.algo_line,
            (
                f"at {bad[0]} bytes{more} the elements of one rank are no "
                f"multiple of nchunksperloop = {chunks}, which releases before 2024 ask for"
            ),
            "use a recent release, or a plan with fewer chunks",
        )


def _operators(case: Case) -> Iterator[Complaint]:
    collective = _collective(case)
    if collective is not None and collective.reduces and case.target.name != "msccl":
        yield (
            case.document.algo_line,
            "only sum, prod, min and max take the file; avg and operators of the user's own do not",
            "divide after a sum",
        )


def _switches(case: Case) -> Iterator[Complaint]:
    target = case.target
    yield (
        0,
        f"{target.title} uses files only when told so ({target.status}); read by {target.versions}",
        f"set {target.switches}, and NCCL_DEBUG=INFO to see whether it is used",
    )


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
RULES = (
    Rule("U01", _E, "ranks of the communicator", "the file is never used", _ranks),
    Rule("U02", _E, "in place or out of place", "the file is never used", _places),
    Rule("U03", _N, "in place and out of place", "half of the calls do not use the file", _one_place),
    Rule("U04", _E, "a range of sizes", "the file is refused or never used", _empty_range),
    Rule("U05", _W, "default of maxBytes", "large messages do not use the file", _default_range),
    Rule("U06", _W, "roots are not compared", "wrong results for other roots", _root),
    Rule("U07", _W, "shares of ranks", "older releases do not use the file", _small_shares),
    Rule("U08", _N, "operators", "other operators do not use the file", _operators),
    Rule("U09", _N, "how to use it", "the file is ignored", _switches),
)
