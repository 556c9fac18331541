"""Predict what a library picks, at a size or at many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct

from coppice.collectives import Collective
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.shared import NumRanksOption, RootOption


class SelectedCall(Struct, frozen=True, kw_only=True):
    """A call of a library, beyond its collective, size and ranks."""

    function: Annotated[str | None, option("function of the library, such as allgatherv")] = None
    variant: Annotated[str | None, option("table to start with, such as tuned or disjoint")] = None
    commutative: Annotated[
        bool,
        option(
            "no: the operation does not commute",
            was=["--commutative commutative=yes", "--non-commutative commutative=no"],
        ),
    ] = True
    element_bytes: Annotated[int, option("bytes of an element: 4", ge=1)] = 4


class SelectOptions(SelectedCall, frozen=True, kw_only=True):
    """What is known of a call and of where it runs."""

    ranks: NumRanksOption = None
    topology: Annotated[
        Any,
        ANYTHING,
        option("Where it runs, as :func:`coppice.load` takes it [default: only `ranks` is known]."),
    ] = None
    ranks_per_box: Annotated[
        int | None, option("Ranks in each box, where there is no topology.", metavar="N", ge=1)
    ] = None
    builtin: Annotated[bool, option("The operation is one of the library's own.")] = True
    settings: Annotated[Mapping[str, str] | None, ANYTHING, option("Inputs of NCCL's cost model.")] = None
    root: RootOption = None


class SelectCall(SelectOptions, frozen=True):
    """A call of a library at sizes."""

    library: Annotated[str, argument("One of open-mpi, mpich, mvapich2, nccl.")]
    collective: Annotated[Collective | str, argument("What is performed, or its name.")]
    size_bytes: Annotated[
        AnySizes,
        argument("M in bytes or as text such as 64K; a list or a range such as 1K:1G for several."),
    ]


@verb(SelectCall)
def select(asked: SelectCall) -> Any:
    """Predict the algorithm that a library picks, and explain why.

    One size gives a :class:`Selection`, several a list of them.

    Raises:
        InputError: If the library, its function or the collective is unknown, or the call has no meaning.

    Examples:
        >>> import coppice
        >>> pick = coppice.select("open-mpi", "all_reduce", "64K", ranks=48)
        >>> pick.algorithm, pick.ours
        ('rabenseifner', 'rabenseifner')
        >>> [pick.algorithm for pick in coppice.select("nccl", "all_reduce", "1K:1G:1024", ranks=8, ranks_per_box=8)]
        ['Ring/LL', 'Ring/LL', 'NVLS/Simple']
    """
    from coppice.selection import select as selected
    from coppice.text import sizes_of

    options = {name: getattr(asked, name) for name in SelectOptions.__struct_fields__}
    size = asked.size_bytes
    if isinstance(size, int) or (isinstance(size, str) and not {":", ","} & set(size)):
        return selected(asked.library, asked.collective, sizes_of(size)[0], **options)
    return [selected(asked.library, asked.collective, each, **options) for each in sizes_of(size)]
