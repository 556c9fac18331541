"""A rules file of Open MPI for a topology, from simulated times of its algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.exported import Exported
from coppice.export.open_mpi.writer import OmpiRule, merged, rules_file
from coppice.fitting.open_mpi import COLLECTIVES, OmpiChoice, choices_of, compared
from coppice.selection.open_mpi_names import FUNCTIONS
from coppice.topology.model import Topology
from coppice.version import __version__

__all__ = ["export_ompi_rules", "rules_of"]

DEFAULT_SIZES = tuple(1 << power for power in range(6, 28, 3))


def export_ompi_rules(
    topology: Topology,
    *,
    collectives: Sequence[str] = tuple(map(str, COLLECTIVES)),
    sizes: Sequence[int] = DEFAULT_SIZES,
    form: str = "classic",
    jobs: int | None = None,
) -> Exported:
    """A rules file for communicators of all ranks, from simulated times of Open MPI's algorithms.

    Args:
        topology: Where it runs, one process on each GPU, ranks as numbered.
        collectives: Names of collectives.
        sizes: Sizes M at which they are compared.
        form: One of :data:`~coppice.export.open_mpi.writer.FORMS`.
        jobs: Number of processes that compare.

    Raises:
        InputError: If a name is unknown, or Open MPI has no rules for a collective.
    """
    chosen = []
    for name in dict.fromkeys(collectives):
        if name not in list(Collective) or Collective(name) not in FUNCTIONS:
            msg = f"expected collectives out of {', '.join(FUNCTIONS)}, found {name!r}."
            raise InputError(msg)
        chosen.append(Collective(name))
    if topology.num_ranks < 2 or not chosen or not sizes:
        msg = "expected 2 ranks, a collective and a size at least: there is nothing to choose otherwise."
        raise InputError(msg)
    found = {
        collective: choices_of(compared(topology, collective, sizes, jobs=jobs)) for collective in chosen
    }
    rules = {collective: {topology.num_ranks: rules_of(choices)} for collective, choices in found.items()}
    notes = [_words(collective, choices) for collective, choices in found.items()]
    return Exported(
        text=rules_file(
            rules,
            form=form,
            comments=[f"coppice {__version__}, simulated on {topology.name} {topology.sha256[:16]}"],
        ),
        notes=(
            *notes,
            "times are simulated: measure before you rely on them",
            "mpirun --mca coll ^han --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE",
        ),
        suffix=".json" if form == "json" else ".conf",
    )


def rules_of(choices: Sequence[OmpiChoice]) -> tuple[OmpiRule, ...]:
    """Rules from choices at ascending sizes: equal neighbours become one, ranges meet at the geometric mean.

    Examples:
        >>> choices = [OmpiChoice(size_bytes=size, id=id) for size, id in ((4, 3), (16, 3), (64, 4))]
        >>> [(rule.first_bytes, rule.id) for rule in rules_of(choices)]
        [(0, 3), (33, 4)]
    """
    firsts = [isqrt(one.size_bytes * two.size_bytes) + 1 for one, two in pairwise(choices)]
    return merged(
        OmpiRule(first_bytes=first, id=choice.id, fanout=choice.fanout, segment_bytes=choice.segment_bytes)
        for first, choice in zip([0, *firsts], choices, strict=False)
    )


def _words(collective: Collective, choices: Sequence[OmpiChoice]) -> str:
    gains = [choice.default_us / choice.time_us for choice in choices if choice.id and choice.default_us]
    changed = sum(1 for choice in choices if choice.id)
    words = f"{collective}: another algorithm than Open MPI's own at {changed} of {len(choices)} sizes"
    return words + (f", up to {max(gains):.3g} times as fast" if gains else "")
