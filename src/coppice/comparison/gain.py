"""Speed-up of optimal trees over rings and hierarchical algorithms as a cluster grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coppice.bounds.problem import Problem
from coppice.comparison.measurement import SimulatedTime
from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import algorithms as catalogue
from coppice.planners.choice import optimal_planner
from coppice.simulation.models import DEFAULT_MODEL, Model
from coppice.simulation.simulated import model_record
from coppice.text import aligned, number, plural, short_size

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import GainJson, RivalJson

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "ring": ("ring", "best-ring", "nccl-ring"),
    "hierarchical": ("hierarchical", "2d-torus", "blueconnect", "accl", "k-grouped", "plink", "two-level"),
}
"""What the optimal planner is measured by: the fastest algorithm of each family counts."""


@dataclass(frozen=True, kw_only=True)
class GainRow:
    """Times on one cluster."""

    boxes: int  # Number of boxes
    ranks: int  # Number of ranks
    optimal: SimulatedTime  # The optimal planner's measurement
    rivals: Mapping[str, SimulatedTime | None]  # The fastest of each family, None where none applies
    limit_us: float  # No schedule is faster

    def over(self, family: str) -> float | None:
        """Speed-up of the optimal planner over the fastest of a family."""
        rival = self.rivals[family]
        return None if rival is None else rival.time_us / self.optimal.time_us

    def rival_record(self, family: str) -> RivalJson | None:
        """The fastest of a family and the gain over it as JSON values; None where none applies."""
        rival, gained = self.rivals[family], self.over(family)
        if rival is None or gained is None:
            return None
        return {
            "algorithm": rival.algorithm,
            "reached_algbw_gb_per_s": rival.algbw_gb_per_s,
            "algbw_gb_per_s": rival.algbw_gb_per_s,
            "gain": gained,
        }


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Speed-ups over the number of boxes."""

    size_bytes: int  # Size M of every comparison
    rows: tuple[GainRow, ...]  # By number of boxes, ascending
    model: Model = DEFAULT_MODEL  # How they were simulated

    def record(self) -> GainJson:
        """JSON values."""
        words = gain_words(self)
        return {
            "size_bytes": self.size_bytes,
            "model": model_record(self.model),
            "rows": [
                {
                    "boxes": row.boxes,
                    "ranks": row.ranks,
                    "algorithm": row.optimal.algorithm,
                    "reached_algbw_gb_per_s": row.optimal.algbw_gb_per_s,
                    "algbw_gb_per_s": row.optimal.algbw_gb_per_s,
                    "limit_algbw_gb_per_s": self.size_bytes / row.limit_us / 1000,
                    "ring": row.rival_record("ring"),
                    "hierarchical": row.rival_record("hierarchical"),
                }
                for row in self.rows
            ],
            "sentences": words,
            "words": words,
        }


def gain(problems: Mapping[int, Problem], size_bytes: int, **options: Any) -> Gain:
    """Compare the optimal planner with rings and hierarchical algorithms on clusters of growing size.

    Args:
        problems: The same collective by number of boxes.
        options: Of :func:`~coppice.comparison.compare`: model, order, relay_gpus, executor, jobs, on_progress.
    """
    rows, model = [], DEFAULT_MODEL
    for boxes, problem in sorted(problems.items()):
        optimal = optimal_planner(problem.collective)
        if optimal is None:
            raise InputError(
                f"a {problem.collective} moves no bytes: choose a collective that does to see a gain."
            )
        names = {
            family: [name for name in members if (name, problem.collective) in catalogue()]
            for family, members in FAMILIES.items()
        }
        tried = [optimal, *(name for members in names.values() for name in members)]
        alike: dict[str, Any] = {"relay_gpus": False, "in_network": False, **options}
        found = compare(problem, sizes=[size_bytes], algorithms=tried, **alike)
        model = found.model
        rows.append(
            GainRow(
                boxes=boxes,
                ranks=problem.topology.num_ranks,
                optimal=found.times[optimal][size_bytes],
                rivals={family: _fastest(found, members, size_bytes) for family, members in names.items()},
                limit_us=found.limit_us(size_bytes),
            )
        )
    return Gain(size_bytes=size_bytes, rows=tuple(rows), model=model)


def gain_lines(found: Gain, *, max_width: int | None = None) -> list[str]:
    """Speed-ups as a table; columns left out to fit ``max_width`` are named below."""
    heads = [("boxes", ""), ("ranks", ""), ("limit", "(GB/s)"), ("optimal", "(GB/s)")]
    for family in FAMILIES:
        heads += [(family, "(GB/s)"), ("gain", "")]
    heads.append(("fastest of each", ""))
    rows = []
    for row in found.rows:
        cells = [str(row.boxes), str(row.ranks), number(found.size_bytes / row.limit_us / 1000)]
        cells.append(number(row.optimal.algbw_gb_per_s))
        for family, rival in row.rivals.items():
            over = row.over(family)
            cells += (
                ["-", "-"]
                if rival is None or over is None
                else [number(rival.algbw_gb_per_s), f"{over:.2f}x"]
            )
        cells.append(", ".join(rival.algorithm for rival in row.rivals.values() if rival is not None))
        rows.append(cells)
    return aligned(heads, rows, max_width=max_width, spare=[len(heads) - 1, 2])


def gain_words(found: Gain) -> list[str]:
    """Summary of the table, a sentence for each family."""
    sentences = []
    for family in FAMILIES:
        known = [(row, over) for row in found.rows if (over := row.over(family)) is not None]
        if len(known) < 2:
            continue
        (top, most), (many, last) = max(known, key=lambda each: each[1]), known[-1]
        what = f"{many.optimal.algorithm} over {family} at {short_size(found.size_bytes)}"
        largest = f"{most:.2f}x on {plural(top.boxes, 'box')}"
        if last >= most * 0.99:
            sentences.append(f"gain of {what}: largest on the largest cluster, {largest}.")
            continue
        change = f"gain of {what}: {largest}, {last:.2f}x on {many.boxes}"
        if last - 1 <= (most - 1) / 2:
            sentences.append(
                f"{change}: it shrinks towards 1, since on a large symmetric cluster the ranks' own network links "
                "limit every algorithm that sends no byte over them twice."
            )
        else:
            sentences.append(f"{change}: it shrinks as the cluster grows.")
    return sentences


def _fastest(found: Comparison, names: list[str], size_bytes: int) -> SimulatedTime | None:
    rows = [found.times[name][size_bytes] for name in names if size_bytes in found.times.get(name, {})]
    return min(rows, key=lambda row: row.time_us, default=None)
