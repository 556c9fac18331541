"""Problem: a collective on a topology, with everything that affects its optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from coppice.arguments import shown
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology.load import load
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.nouns import ProblemJson


@dataclass(frozen=True)
class Problem:
    """A collective on a topology, with everything that affects its optimum.

    Raises:
        InputError: If a part is of another type. Whether the parts suit each other is checked where a problem is used.

    Examples:
        >>> import coppice
        >>> Problem(coppice.load("dgx-a100"), "all-gather").collective
        <Collective.ALL_GATHER: 'all_gather'>
        >>> Problem(coppice.load("dgx-a100"), "all_gahter")
        Traceback (most recent call last):
        coppice.errors.InputError: there is no collective 'all_gahter': did you mean 'all_gather'?
    """

    # The network; its ranks take part. GPUs without a rank are relays (they forward, own nothing).
    topology: Topology
    # What to do; a name such as `all_gather` becomes the member of :class:`Collective`
    collective: Collective
    _: KW_ONLY
    root: int | None = None  # Root rank of broadcast, reduce, gather and scatter, otherwise None
    # Relative shard size of each rank (all_gather and reduce_scatter), or None for equal ones
    weights: tuple[int, ...] | None = None
    # For all_to_all, `demands[i][j]` = relative size from rank i to rank j, or None for uniform
    demands: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Bring every part into its form."""
        if not isinstance(self.topology, Topology):
            raise InputError(
                f"expected a Topology, found {shown(self.topology)}: make one with coppice.load."
            )
        if type(self.collective) is not Collective:
            object.__setattr__(self, "collective", Collective.named(self.collective))
        if self.root is not None:
            object.__setattr__(self, "root", _whole(self.root, "a rank as the root"))
        if self.weights is not None:
            object.__setattr__(self, "weights", _numbers(self.weights, "weights"))
        if self.demands is not None:
            rows = _listed(self.demands, "demands")
            object.__setattr__(
                self, "demands", tuple(_numbers(row, f"demands[{i}]") for i, row in enumerate(rows))
            )

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.topology.presets import preset
        >>> Problem(topology=preset("ring", gpus=4), collective=Collective.BROADCAST, root=0)
        Problem(broadcast from rank 0, Topology('ring of 4', 4 ranks, 4 nodes, 8 links))
        """
        words = str(self.collective)
        if self.root is not None:
            to_root = self.collective in (Collective.REDUCE, Collective.GATHER)
            words += f" {'to' if to_root else 'from'} rank {self.root}"
        sizes = {"weights": self.weights, "demands": self.demands}
        given = "".join(f", with {name}" for name, value in sizes.items() if value is not None)
        return f"Problem({words}{given}, {self.topology!r})"

    @property
    def shards(self) -> Fraction:
        """Number of shards in M (see :class:`~coppice.collectives.Collective`); with demands, of units of demand.

        >>> from coppice.topology.presets import preset
        >>> pair, sizes = preset("star", gpus=2), ((0, 1000), (1000, 0))
        >>> Problem(pair, "all_to_all").shards, Problem(pair, "all_to_all", demands=sizes).shards
        (Fraction(2, 1), Fraction(2000, 1))
        """
        ranks = self.topology.num_ranks
        if self.demands is None:
            return Fraction(self.collective.shards(ranks, self.weights))
        moved = sum(size for i, row in enumerate(self.demands) for j, size in enumerate(row) if i != j)
        return Fraction(moved, max(1, ranks - 1))

    @property
    def phases(self) -> tuple[Problem, ...]:
        """Reduce-scatter and all-gather for an all-reduce in two phases; the problem itself otherwise.

        >>> from coppice.topology.presets import preset
        >>> [str(each.collective) for each in Problem(preset("ring", gpus=4), Collective.ALL_REDUCE).phases]
        ['reduce_scatter', 'all_gather']
        """
        if self.collective is not Collective.ALL_REDUCE:
            return (self,)
        both = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
        return tuple(replace(self, collective=collective) for collective in both)

    def record(self) -> ProblemJson:
        """Identification of the problem as JSON values."""
        return {
            "collective": self.collective.value,
            "topology": self.topology.name,
            "topology_sha256": self.topology.sha256,
            "ranks": self.topology.num_ranks,
            "root": self.root,
        }


def problem_of(
    # A :class:`Problem`, whatever has one as its attribute `problem` (a plan, a bound, a comparison), or what
    # :func:`coppice.load` takes
    source: object,
    collective: Collective | str | None = None,  # The collective, where `source` is a topology
    *,
    root: int | None = None,  # Root rank; 0 where a rooted collective is given none
    weights: Sequence[int] | None = None,
    demands: Sequence[Sequence[int]] | None = None,
) -> Problem:
    """Coerce a problem, or a topology and a collective, to a problem."""
    found = source if isinstance(source, Problem) else getattr(source, "problem", None)
    if isinstance(found, Problem):
        given = {"collective": collective, "root": root, "weights": weights, "demands": demands}
        more = [name for name, value in given.items() if value is not None]
        if more:
            raise InputError(
                f"expected a problem alone, or a topology with `{more[0]}`, found a problem with it: leave one out."
            )
        return found
    topology = load(source)
    if collective is None:
        raise InputError(
            f"expected a collective to do on {topology.name}, found none: name one, such as {Collective.ALL_REDUCE}."
        )
    chosen = Collective.named(collective)
    if root is None and chosen.rooted:
        root = 0
    return Problem(topology, chosen, root=root, weights=weights, demands=demands)  # type: ignore[arg-type]


def _whole(value: object, what: str) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise InputError(f"expected {what}, found {shown(value)}: give an int.")


def _listed(values: Any, name: str) -> Sequence[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        return values
    raise InputError(
        f"expected `{name}` to be a list of numbers, found {shown(values)}: give one for each rank."
    )


def _numbers(values: Any, name: str) -> tuple[int, ...]:
    return tuple(_whole(each, f"whole numbers as `{name}`") for each in _listed(values, name))
