"""Format comparisons as text: tables in the style of nccl-tests, ranges, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from coppice.comparison.measurement import SimulatedTime
from coppice.comparison.outcome import Comparison, parameters_text
from coppice.comparison.ranges import percent
from coppice.text import aligned, columns, number, seconds_text

COLUMNS = (
    *("topology", "collective", "ranks", "size_bytes", "algorithm", "parameters", "order", "pieces"),
    *("relays", "in_network", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "limit_us", "share_of_limit"),
    *("chain", "sent_bytes", "link", "link_us", "gap", "synthesis_seconds", "refusal"),
)
"""Columns of the CSV file."""


def best_lines(
    comparison: Comparison, achievable: Comparison | None = None, *, max_width: int | None = None
) -> list[str]:
    """Best algorithm at each size next to the optimal planner.

    Args:
        achievable: The same at measured link rates, for a further pair of columns.
        max_width: Characters that a line may have: columns that are left out for it are named below.
    """
    optimal = comparison.optimal_name
    heads = [("size", "(B)"), ("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("of limit", "")]
    if achievable is not None:
        heads += [("measured", "algbw"), ("rates", "busbw")]
    if optimal is not None:
        heads += [(optimal, "(us)"), ("algbw", "(GB/s)")]
    heads.append(("best", ""))
    rows = []
    for size in comparison.sizes:
        best = comparison.best(size)
        if best is None:
            continue
        cells = [str(size), *_figures(comparison, best)]
        if achievable is not None:
            second = achievable.best(size)
            cells += ["-", "-"] if second is None else _figures(achievable, second)[1:3]
        if optimal is not None:
            row = comparison.times[optimal].get(size)
            cells += ["-", "-"] if row is None else [number(row.time_us), number(row.algbw_gb_per_s)]
        cells.append(" ".join(filter(None, (best.algorithm, parameters_text(best)))))
        rows.append(cells)
    last = len(heads) - 2
    spare = [3, *([last] if optimal is not None else []), 2, *([last - 1] if optimal is not None else [])]
    return aligned(heads, rows, max_width=max_width, spare=spare)


def algorithm_lines(comparison: Comparison, *, max_width: int | None = None) -> list[str]:
    """Every algorithm at every size, the fastest first."""
    heads = [("size", "(B)"), ("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("of limit", "")]
    heads.append(("algorithm", ""))
    rows = [
        [str(size), *_figures(comparison, row), " ".join(filter(None, (row.algorithm, parameters_text(row))))]
        for size in comparison.sizes
        for row in comparison.fastest_first(size)
    ]
    return aligned(heads, rows, max_width=max_width, spare=[3, 2])


def modelled_lines(comparison: Comparison, *, max_width: int | None = None) -> list[str]:
    """In-network systems at every size, the fastest first, next to the best simulated algorithms."""
    found = comparison.modelled
    if found is None or not found.placed:
        return []
    heads = [("size", "(B)"), ("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("of bound", "")]
    heads.append(("system", ""))
    factor = float(comparison.problem.busbw_factor)
    rows = []
    for size in comparison.sizes:
        here: list[tuple[float, list[str]]] = []
        for row in found.fastest_first(size):
            share = percent(comparison.modelled_limit_us(row) / row.time_us)
            figures = [
                number(each) for each in (row.time_us, row.algbw_gb_per_s, row.algbw_gb_per_s * factor)
            ]
            here.append((row.time_us, [str(size), *figures, share, f"{row.system} (modelled)"]))
        best = comparison.best(size)
        if best is not None:
            figures = [*_figures(comparison, best)[:3], "-"]
            words = " ".join(filter(None, (best.algorithm, parameters_text(best))))
            here.append((best.time_us, [str(size), *figures, f"{words} (simulated)"]))
        rows += [cells for _, cells in sorted(here, key=lambda each: each[0])]
    return aligned(heads, rows, max_width=max_width, spare=[3, 2])


def range_lines(comparison: Comparison) -> list[str]:
    """Winner and reason of each size range, one line each."""
    width = max((len(found.sizes_text) for found in comparison.ranges), default=0)
    return [
        f"{found.sizes_text:>{width}} {found.text.removeprefix(found.sizes_text).strip()}"
        for found in comparison.ranges
    ]


def refusal_lines(comparison: Comparison) -> list[str]:
    """Algorithms that do not apply, with reasons; those without routes share a line."""
    lines = [f"{row.algorithm}: {row.refusal}" for row in comparison.left_out if not row.unreachable]
    apart = [row.algorithm for row in comparison.left_out if row.unreachable]
    if apart:
        why = "they send between GPUs that no path of switches and NICs joins"
        lines.append(f"{', '.join(apart)}: {why}; `relay_gpus` lets other GPUs pass that on")
    return lines


def synthesis_lines(comparison: Comparison) -> list[str]:
    """Schedules of synthesis methods: rate, distance from the optimum, and search time."""
    best = float(comparison.optimum.algbw_gb_per_s)
    rows = []
    for row in comparison.synthesized:
        gap = row.gap or 0.0
        behind = "the optimum" if gap <= 0 else f"{percent(gap)} below the optimum"
        rows.append(
            [
                row.algorithm,
                f"{best * (1 - gap):.6g} GB/s,",
                f"{behind},",
                f"found in {seconds_text(row.synthesis_seconds or 0.0)}",
            ]
        )
    return columns(rows, "lrll") if rows else []


def csv_text(comparisons: Sequence[Comparison]) -> str:
    """Every algorithm at every size, and every refusal, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        writer.writerows(comparison.rows())
        if comparison.helped is not None:
            writer.writerows(row for row in comparison.helped.rows() if row["refusal"] is None)
        writer.writerows(comparison.modelled_rows())
    return text.getvalue()


def _figures(comparison: Comparison, row: SimulatedTime) -> list[str]:
    return [
        number(row.time_us),
        number(row.algbw_gb_per_s),
        number(comparison.busbw_gb_per_s(row)),
        percent(comparison.share_of_limit(row)),
    ]
