"""Result of a comparison: the time of every algorithm at every size, and the bounds they are measured against."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from math import log
from typing import TYPE_CHECKING, Any, cast

from coppice.bounds.describe import describe_cut
from coppice.bounds.latency import LatencyBound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.comparison.in_network import ModelledSystems, ModelledTime
from coppice.comparison.measurement import SimulatedTime, faster
from coppice.comparison.ranges import LibraryPick, Range, library_picks, ranges
from coppice.display import Shown, loaded
from coppice.errors import MissingExtraError
from coppice.planners.choice import optimal_planner
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import Model
from coppice.simulation.simulated import model_record, share_of_least_time, without_bursts

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import ComparisonJson, ComparisonRowJson

PANDAS = "pandas"
"""Package of :meth:`Comparison.to_pandas`."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Simulated times of the algorithms that apply, the best variant of each at each size."""

    problem: Problem  # What was compared
    model: Model  # How it was simulated
    sizes: tuple[int, ...]  # Sizes M in bytes, ascending
    # The exact optimal rate and its cut; where switches may copy or add, the bound with their help, and the
    # rate without it among the alternatives
    optimum: Bound
    latency: LatencyBound  # The least time of any schedule, however small the message
    least: LeastTimes  # The least time of any schedule at each size
    # Everything that was measured, all variants: candidates in order, sizes ascending
    measurements: tuple[SimulatedTime, ...]
    # What lets switches copy and add, compared by itself with the limit that holds for it: no time here is
    # mixed with one there. None where no switch can, where nothing does, or where it was asked for or ruled
    # out.
    helped: Comparison | None = None
    # Systems that aggregate in the network, by their closed forms; None where none was asked for
    modelled: ModelledSystems | None = None

    def __repr__(self) -> str:
        topology = self.problem.topology
        sizes = f"{self.sizes[0]:,} .. {self.sizes[-1]:,}" if len(self.sizes) > 1 else f"{self.sizes[0]:,}"
        winners = [f"{found.algorithm} ({found.sizes_text})" for found in self.ranges[:3]]
        more = f", and {len(self.ranges) - 3} more ranges" if len(self.ranges) > 3 else ""
        return (
            f"Comparison({self.problem.collective} among {topology.num_ranks} ranks of {topology.name:.60}, "
            f"{sizes} bytes: {len(self.times)} of {len(self.times) + len(self.refused)} algorithms apply; "
            f"fastest: {', '.join(winners) or 'none'}{more})"
        )

    @cached_property
    def times(self) -> Mapping[str, Mapping[int, SimulatedTime]]:
        """Fastest variant of each algorithm that applies, by algorithm and size; the first of equals."""
        found: dict[str, dict[int, SimulatedTime]] = {}
        for row in self.measurements:
            if row.refusal is None:
                best = found.setdefault(row.algorithm, {}).setdefault(row.size_bytes, row)
                if faster(row.time_us, best.time_us):
                    found[row.algorithm][row.size_bytes] = row
        return found

    @cached_property
    def refused(self) -> tuple[SimulatedTime, ...]:
        """First refusal of each algorithm with no variant that applies."""
        first: dict[str, SimulatedTime] = {}
        for row in self.measurements:
            if row.algorithm not in self.times:
                first.setdefault(row.algorithm, row)
        return tuple(first.values())

    @property
    def left_out(self) -> tuple[SimulatedTime, ...]:
        """Refusals of algorithms that have times neither here nor with in-network switches."""
        elsewhere = {} if self.helped is None else self.helped.times
        return tuple(row for row in self.refused if row.algorithm not in elsewhere)

    @property
    def synthesized(self) -> tuple[SimulatedTime, ...]:
        """One row per synthesis method that found a schedule: the one with the best rate."""
        best: dict[str, SimulatedTime] = {}
        for row in self.measurements:
            if row.gap is None:
                continue
            known = best.setdefault(row.algorithm, row).gap
            if known is not None and row.gap < known:
                best[row.algorithm] = row
        return tuple(best.values())

    @property
    def optimal_name(self) -> str | None:
        """``forest`` or ``flow`` where it was compared, otherwise None."""
        name = optimal_planner(self.problem.collective)
        return name if name in self.times else None

    def fastest_first(self, size_bytes: int) -> list[SimulatedTime]:
        """The algorithms at a size by time; of equals the one with the shortest chain of messages first."""
        rows = [by_size[size_bytes] for by_size in self.times.values() if size_bytes in by_size]
        return sorted(rows, key=lambda row: (float(f"{row.time_us:.9g}"), row.chain))

    @property
    def picker(self) -> str:
        """Library whose picks stand here: NCCL, or RCCL on AMD's GPUs."""
        return self.picks[0].library if self.picks else "NCCL"

    @property
    def picked(self) -> tuple[str, ...]:
        """The algorithms compared here that NCCL (RCCL) would pick, that of the most sizes first."""
        count = Counter(pick.algorithm for pick in self.picks if pick.algorithm in self.times)
        return tuple(name for name, _ in count.most_common() if name is not None)

    def outstanding(self, most: int) -> list[str]:
        """Algorithms to show in a plot: the optimal planner, the winners, what NCCL picks, rings, and the next best.

        Args:
            most: How many at most; the next best are those whose times are the least multiples of the best times on
                the geometric mean of all sizes.
        """
        least = {size: best.time_us for size in self.sizes if (best := self.best(size)) is not None}
        off = {
            name: sum(
                log(row.time_us / least[size]) for size, row in by_size.items() if least[size] and row.time_us
            )
            / len(by_size)
            for name, by_size in self.times.items()
        }
        by_time = sorted(off, key=off.__getitem__)
        first = [
            self.optimal_name,
            *(found.algorithm for found in self.ranges),
            *self.picked,
            *(name for name in by_time if "ring" in name.split("-")),
            *by_time,
        ]
        return [name for name in dict.fromkeys(first) if name is not None][:most]

    def best(self, size_bytes: int) -> SimulatedTime | None:
        """The fastest algorithm at a size, None where none applies."""
        return next(iter(self.fastest_first(size_bytes)), None)

    def limit_us(self, size_bytes: int) -> float:
        """Lower bound: the least time of this size, or the time of the optimum's rate where that is longer."""
        bandwidth = float(self.optimum.inv_rate) * size_bytes / self.problem.shards / 1000
        return max(
            without_bursts(bandwidth, self.model, self.problem.topology), self.least.at(size_bytes).time_us
        )

    def share_of_limit(self, row: SimulatedTime) -> float:
        """Lower bound over the time of a measurement, at most 1.

        Raises:
            CheckError: If it is faster than the limit, which is an error of ours.
        """
        if not row.time_us:
            return 1.0
        return share_of_least_time(self.limit_us(row.size_bytes), row.time_us, row.size_bytes, self.problem)

    def busbw_gb_per_s(self, row: SimulatedTime) -> float:
        """Bus bandwidth as nccl-tests reports it."""
        return row.algbw_gb_per_s * float(self.problem.busbw_factor)

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """Winner by size range, with the reason."""
        return ranges(self.sizes, self.times, limit_us=self.limit_us)

    @cached_property
    def picks(self) -> tuple[LibraryPick, ...]:
        """Predicted pick of NCCL, or of RCCL, at each size; empty where neither runs."""
        helped = None if self.helped is None else self.helped.times
        return library_picks(self.problem, self.sizes, self.times, helped, model=self.model)

    def rows(self) -> Iterable[dict[str, Any]]:
        """Every algorithm at every size as a flat record, refusals included: the rows of a CSV file."""
        topology = self.problem.topology
        for size_bytes in self.sizes:
            for row in (*self.fastest_first(size_bytes), *self.refused):
                timed = row.refusal is None
                yield {
                    "topology": topology.name,
                    "collective": self.problem.collective.value,
                    "ranks": topology.num_ranks,
                    "size_bytes": size_bytes,
                    "algorithm": row.algorithm,
                    "parameters": parameters_text(row),
                    "order": row.order,
                    "pieces": row.pieces if timed else None,
                    "relays": row.relays if timed else None,
                    "in_network": row.in_network if timed else None,
                    "time_us": row.time_us if timed else None,
                    "algbw_gb_per_s": row.algbw_gb_per_s if timed else None,
                    "busbw_gb_per_s": self.busbw_gb_per_s(row) if timed else None,
                    "limit_us": self.limit_us(size_bytes),
                    "share_of_limit": self.share_of_limit(row) if timed else None,
                    "chain": row.chain if timed else None,
                    "sent_bytes": row.sent_bytes if timed else None,
                    "link": row.link if timed else None,
                    "link_us": row.link_us if timed else None,
                    "gap": row.gap,
                    "synthesis_seconds": row.synthesis_seconds,
                    "refusal": row.refusal,
                }

    def modelled_rows(self) -> Iterable[dict[str, Any]]:
        """Closed-form systems at every size as such records; those that do not fit carry the reason."""
        if self.modelled is None:
            return
        factor = float(self.problem.busbw_factor)
        same = {
            "topology": self.problem.topology.name,
            "collective": self.problem.collective.value,
            "ranks": self.problem.topology.num_ranks,
            "parameters": "modelled",
            "in_network": True,
        }
        for size_bytes in self.sizes:
            for row in self.modelled.fastest_first(size_bytes):
                limit_us = self.modelled_limit_us(row)
                yield {
                    **same,
                    "size_bytes": size_bytes,
                    "algorithm": row.system,
                    "time_us": row.time_us,
                    "algbw_gb_per_s": row.algbw_gb_per_s,
                    "busbw_gb_per_s": row.algbw_gb_per_s * factor,
                    "limit_us": limit_us,
                    "share_of_limit": limit_us / row.time_us,
                    "refusal": None,
                }
            for name, refusal in self.modelled.refused.items():
                yield {**same, "size_bytes": size_bytes, "algorithm": name, "refusal": refusal}

    def modelled_limit_us(self, row: ModelledTime) -> float:
        """Lower bound with the switches a system may use: its exact bound or the latency bound.

        Args:
            row: The system's time at a size.
        """
        if self.modelled is None:
            return self.latency.time_us
        bandwidth = float(self.modelled.bounds[row.system]) * row.size_bytes / 1000
        return max(bandwidth, self.latency.time_us)

    def to_table(self) -> list[dict[str, Any]]:
        """A row for each algorithm and size, the fastest algorithm of a size first, refused ones last.

        Columns are those of :meth:`rows`, with units in their names, and ``status``: ``simulated``, or ``refused``
        with the reason under ``refusal`` and None for all figures. Systems in the network stand below, ``modelled``.

        Examples:
            >>> from coppice.collectives import Collective
            >>> from coppice.comparison import compare
            >>> from coppice.topology.presets import preset
            >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
            >>> (row,) = compare(problem, sizes=[2**20], algorithms=["ring"], jobs=1).to_table()
            >>> row["algorithm"], row["size_bytes"], row["status"]
            ('ring', 1048576, 'simulated')
        """
        found = [(row, "simulated") for row in self.rows()]
        found += [
            (dict.fromkeys(found[0][0] if found else ()) | row, "modelled") for row in self.modelled_rows()
        ]
        return [{**row, "status": kind if row["refusal"] is None else "refused"} for row, kind in found]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw times and rates over size, with the limits: a file called ``*.png``, ``*.svg`` or ``*.pdf``.

        Raises:
            InputError: If the name ends otherwise, or nothing was timed.
            MissingExtraError: If matplotlib is not installed.
        """
        loaded("coppice.comparison.plot:plot")(self, path)

    def to_pandas(self) -> Any:
        """The rows of :meth:`to_table` as a ``pandas.DataFrame``.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        if find_spec(PANDAS) is None:
            raise MissingExtraError.of(PANDAS, extra="pandas")
        return import_module(PANDAS).DataFrame(self.to_table())

    def record(self) -> ComparisonJson:
        """The comparison as JSON values."""
        return {
            **self.problem.record(),
            "model": model_record(self.model),
            "optimum": {
                "optimum_algbw_gb_per_s": float(self.optimum.algbw_gb_per_s),
                "algbw_gb_per_s": float(self.optimum.algbw_gb_per_s),
                "optimum_algbw_exact_gb_per_s": str(self.optimum.algbw_gb_per_s),
                "algbw_exact": str(self.optimum.algbw_gb_per_s),
                "cut_in_words": describe_cut(self.optimum),
            },
            "latency_bound": {"time_us": self.latency.time_us, "why": self.latency.why},
            "ranges": [found.record() for found in self.ranges],
            "best": [found.record() for found in self.ranges],
            "nccl": [pick.record() for pick in self.picks],
            "refusals": {row.algorithm: row.refusal or "" for row in self.refused},
            "rows": [
                cast(
                    "ComparisonRowJson",
                    {
                        **row,
                        "parameters_text": row["parameters"],
                        "relays_used": row["relays"],
                        "switches_used": row["in_network"],
                        "reached_algbw_gb_per_s": row["algbw_gb_per_s"],
                        "reached_busbw_gb_per_s": row["busbw_gb_per_s"],
                        "link_name": row["link"],
                    },
                )
                for row in self.rows()
            ],
            "in_network": None if self.helped is None else self.helped.record(),
            "modelled": None if self.modelled is None else self.modelled.record(),
        }


def parameters_text(row: SimulatedTime) -> str:
    """Parameters of a variant as text: ``segments=8 order=topology``; empty for the defaults."""
    words = [f"{name}={value}" for name, value in row.parameters.items()]
    if row.pieces > 1:
        words.append(f"pieces={row.pieces}")
    if row.order == "topology":
        words.append("order=topology")
    if row.relays:
        words.append("relays")
    if row.in_network:
        words.append("in-network")
    return " ".join(words)
