"""`coppice tune fit`: from measurements to a table of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coppice.cli.options.inputs import BoxesOption, JsonOption, SetOption, load_topology
from coppice.cli.output.render import print_json, print_lines
from coppice.files import write_atomically
from coppice.text import short_size
from coppice.topology.model import Topology
from coppice.tuning.fit import NO_END, Fit, Rule, fit_runs
from coppice.tuning.records import Run, read_runs
from coppice.tuning.table import RuleTable, encode_table
from coppice.tuning.undo import undo_line

__all__ = ["AlphaOption", "GainOption", "TopologyOption", "fit", "fit_lines", "fitted"]

AlphaOption = Annotated[
    float,
    typer.Option("--alpha", help="Probability with which a choice that makes no difference may get a rule."),
]
GainOption = Annotated[float, typer.Option("--least-gain", help="Least relative gain of a rule.")]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="TOPOLOGY",
        help="Preset or file, for the distance from the bound.",
        show_default=False,
    ),
]


def fit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Files of `coppice tune sweep`.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Table to write (CSV).", show_default=False),
    ] = None,
    topology: TopologyOption = None,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    alpha: AlphaOption = 0.01,
    least_gain: GainOption = 0.03,
    extend: Annotated[
        bool, typer.Option("--extend", help="Rules reach to sizes beyond the measured ones.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of resampling.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest choice of every shape and size, and keep it where it beats the default beyond noise.

    A rule needs a corrected p-value below --alpha and an interval of its gain above 1; neighbouring sizes share a
    choice where that costs little. With --topology, every rule says which share of the bandwidth bound it reaches.

    \b
    Examples:
      coppice tune fit runs.jsonl --topology cluster.json -o table.csv
    """  # noqa: D301 (\b is for the help formatter)
    found, loaded = fitted(
        read_runs(runs),
        topology=topology,
        boxes=boxes,
        settings=settings,
        alpha=alpha,
        least_gain=least_gain,
        extend=extend,
        seed=seed,
    )
    words = "" if loaded is None else f"{loaded.name} {loaded.sha256[:16]}"
    if output is not None:
        write_atomically(output, encode_table(RuleTable.of(found, topology=words)).encode())
    if as_json:
        print_json(_record(found))
        return
    print_lines(fit_lines(found))
    if output is not None:
        print_lines([f"written to {output}", f"{undo_line(found.library)}, once it is exported"])


def fitted(
    runs: tuple[Run, ...],
    *,
    topology: str | None,
    boxes: int | None,
    settings: list[str] | None,
    alpha: float,
    least_gain: float,
    extend: bool,
    seed: int,
) -> tuple[Fit, Topology | None]:
    """The fit of measurements, with bounds where a topology is named, and that topology."""
    from coppice.tuning.limits import bounds_us

    loaded = None if topology is None else load_topology(topology, boxes=boxes, settings=settings)
    limits = None if loaded is None else bounds_us(runs, loaded)
    found = fit_runs(runs, bounds_us=limits, alpha=alpha, least_gain=least_gain, extend=extend, seed=seed)
    return found, loaded


def fit_lines(found: Fit) -> list[str]:
    """The rules in words, with gain, interval and share of the bound."""
    title = f"{found.library} {found.version}".rstrip()
    rows: list[tuple[str, ...]] = [
        ("collective", "nodes", "ranks", "from", "to", "choice", "gain", "95 % interval", "of the bound")
    ]
    rows += [_row(rule) for rule in found.rules]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    table = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    sizes = [size for each in found.sizes.values() for size in each]
    changed = [size for size in sizes if size.taken is not None]
    outliers = sum(each.verdict.outliers for size in sizes for each in size.candidates)
    repeats = sum(each.verdict.repeats for size in sizes for each in size.candidates)
    refused = {str(choice): reason for size in sizes for choice, reason in size.refused}
    lines = [f"{title}: another choice than the default at {len(changed)} of {len(sizes)} sizes", *table]
    lines.append(f"{repeats} times, {outliers} of them far from the others; all count")
    lines += [f"{choice} did not run: {reason}" for choice, reason in refused.items()]
    return lines


def _row(rule: Rule) -> tuple[str, ...]:
    changed = rule.choice is not None
    return (
        str(rule.shape.collective),
        str(rule.shape.nodes),
        str(rule.shape.ranks),
        short_size(rule.first_bytes),
        "-" if rule.last_bytes == NO_END else short_size(rule.last_bytes),
        str(rule.choice or "default"),
        f"{rule.gain:.2f}" if changed else "-",
        f"{rule.low:.2f} .. {rule.high:.2f}" if changed else "-",
        "-" if rule.reached is None else f"{100 * rule.reached:.0f} %",
    )


def _record(found: Fit) -> dict[str, Any]:
    return {
        "library": found.library,
        "version": found.version,
        "sizes": [
            {
                "collective": shape.collective.value,
                "nodes": shape.nodes,
                "ranks": shape.ranks,
                "size_bytes": size.size_bytes,
                "default_us": size.default_us,
                "bound_us": size.bound_us,
                "taken": None if size.taken is None else str(size.taken.choice),
                "candidates": [
                    {
                        "choice": str(each.choice),
                        "gain": each.verdict.gain,
                        "low": each.verdict.low,
                        "high": each.verdict.high,
                        "p_value": each.p_value,
                        "sure": each.sure,
                        "repeats": each.verdict.repeats,
                        "outliers": each.verdict.outliers,
                    }
                    for each in size.candidates
                ],
                "refused": [{"choice": str(choice), "reason": reason} for choice, reason in size.refused],
            }
            for shape, sizes in found.sizes.items()
            for size in sizes
        ],
        "rules": [
            {
                "collective": rule.shape.collective.value,
                "nodes": rule.shape.nodes,
                "ranks": rule.shape.ranks,
                "first_bytes": rule.first_bytes,
                "last_bytes": rule.last_bytes,
                "choice": None if rule.choice is None else str(rule.choice),
                "gain": rule.gain,
                "low": rule.low,
                "high": rule.high,
                "bound_share": rule.reached,
            }
            for rule in found.rules
        ],
    }
