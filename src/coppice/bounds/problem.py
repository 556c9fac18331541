"""Problem: a collective on a topology, with everything that affects its optimum.

Parse relative shard sizes: one weight per rank, or a demand matrix for all-to-all, of which
:mod:`coppice.bounds.demands` reads other forms. JSON (`[1, 1, 2]`, `[[0, 3], [1, 0]]`) or text with one rank (one row)
to a line. Numbers are decimals or fractions; they are scaled to whole
numbers where they are not whole, so only their ratios count then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from coppice.arguments import shown
from coppice.collectives import Collective
from coppice.decoding import JSON_FAULTS, json_fault
from coppice.errors import InputError
from coppice.files import read_text
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
        if (
            isinstance(self.demands, np.ndarray)
            and self.demands.ndim == 2
            and self.demands.dtype.kind in "iu"
        ):
            object.__setattr__(self, "demands", tuple(map(tuple, self.demands.tolist())))
        elif self.demands is not None:
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

        M of a matrix of demands is what a rank sends on average, to itself as well: the sum of the matrix over the
        number of ranks. A matrix of equal blocks is a uniform all-to-all where it has the diagonal, too.

        >>> from coppice.topology.presets import preset
        >>> pair, even, own = preset("star", gpus=2), ((1000, 1000), (1000, 1000)), ((0, 1000), (1000, 0))
        >>> Problem(pair, "all_to_all").shards, Problem(pair, "all_to_all", demands=even).shards
        (Fraction(2, 1), Fraction(2000, 1))
        >>> Problem(pair, "all_to_all", demands=own).shards
        Fraction(1000, 1)
        """
        ranks = self.topology.num_ranks
        if self.demands is None:
            return Fraction(self.collective.shards(ranks, self.weights))
        return Fraction(sum(map(sum, self.demands)), max(1, ranks))

    @property
    def busbw_factor(self) -> Fraction:
        """Factor from algbw to busbw: the part of M that a rank sends to others, where there are demands.

        >>> from coppice.topology.presets import preset
        >>> pair = preset("star", gpus=2)
        >>> for demands in (None, ((1, 1), (1, 1)), ((0, 1), (1, 0))):
        ...     print(Problem(pair, "all_to_all", demands=demands).busbw_factor)
        1/2
        1/2
        1
        """
        if self.demands is None:
            return self.collective.busbw_factor(self.topology.num_ranks)
        whole = sum(map(sum, self.demands))
        own = sum(row[i] for i, row in enumerate(self.demands))
        return Fraction(whole - own, whole) if whole else Fraction(1)

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


_LARGEST_WEIGHT = 2**31
_LARGEST_DEMAND = 2**62


def read_weights(path: str) -> tuple[int, ...]:
    """Read one weight for each rank from a file (``-``: standard input)."""
    return parse_weights(
        read_text(path, what="the weights", hint="name a file with one weight for each rank"), where=path
    )


def parse_weights(text: str, *, where: str) -> tuple[int, ...]:
    r"""Parse weights.

    Examples:
        >>> parse_weights("[1, 1, 2]", where="w.json"), parse_weights("0.5\n1/3\n", where="w.txt")
        ((1, 1, 2), (3, 2))
    """
    rows = _rows(text, where)
    flat = rows[0] if len(rows) == 1 else [value for row in rows for value in row if len(row) == 1]
    if len(rows) > 1 and len(flat) != len(rows):
        raise InputError(
            f"expected one weight for each rank in {where}, found rows of numbers: give a list like [1, 2]."
        )
    return tuple(_whole_numbers(flat, below=_LARGEST_WEIGHT, what="weights"))


def parse_demands(text: str, *, where: str) -> tuple[tuple[int, ...], ...]:
    r"""Parse a square demand matrix.

    Examples:
        >>> parse_demands("0 0.5\n1 0", where="d.txt")
        ((0, 1), (2, 0))
    """
    rows = _rows(text, where)
    size = len(rows)
    for position, row in enumerate(rows):
        if len(row) != size:
            raise InputError(
                f"expected a square matrix of demands in {where}, found {len(row)} numbers in row {position} "
                f"of {size}: give one row for each sender and one column for each receiver."
            )
    whole = _whole_numbers([value for row in rows for value in row], below=_LARGEST_DEMAND, what="demands")
    return tuple(tuple(whole[i * size : (i + 1) * size]) for i in range(size))


def _rows(text: str, where: str) -> list[list[Fraction]]:
    """Rows of numbers; a flat JSON list is one row."""
    if text.lstrip().startswith("["):
        try:
            loaded: list[Any] = msgspec.json.Decoder(list, float_hook=str).decode(text)
        except JSON_FAULTS as error:
            raise InputError(
                f"expected a JSON list of numbers in {where}, found otherwise: {json_fault(error, text)}."
            ) from None
        nested = bool(loaded) and all(isinstance(row, list) for row in loaded)
        table = loaded if nested else [loaded]
        place = "$[{0}][{1}]" if nested else "$[{1}]"
    else:
        lines = [line.split("#")[0].replace(",", " ").split() for line in text.splitlines()]
        table = [line for line in lines if line]
        place = "row {0}, column {1}"
    rows = [
        [_number(value, f"{where}: {place.format(i, j)}") for j, value in enumerate(row)]
        for i, row in enumerate(table)
    ]
    if not rows or not rows[0]:
        raise InputError(f"expected a list of numbers in {where}, found none.")
    return rows


def _number(value: object, where: str) -> Fraction:
    """One number >= 0, exact."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | str) or len(str(value)) > 64:
            raise ValueError
        if abs(int(str(value).lower().partition("e")[2] or 0)) > 30:
            raise ValueError
        number = Fraction(value)
        if number < 0:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f'expected a number >= 0 or a fraction such as "1/3", found {str(value)[:40]!r} at {where}.'
        ) from None
    return number


def _whole_numbers(values: Sequence[Fraction], *, below: int, what: str) -> list[int]:
    """The values in their ratios as whole numbers, unchanged where they are whole."""
    scale = 1
    for value in values:
        scale = lcm(scale, value.denominator)
        if scale * max(values) >= below:
            limit = f"2^{below.bit_length() - 1}"
            raise InputError(
                f"expected {what} that are ratios of numbers below {limit}, found {values[0]}, ..: round them."
            )
    return [int(value * scale) for value in values]
