"""`coppice bound`: the best rate that a collective can have, and the cut that sets it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.cli.options.inputs import JsonOption, with_options
from coppice.cli.options.problem import InNetworkOption, ProblemOptions, TreesOption, parse_trees
from coppice.cli.output.render import Stages, print_fields, print_json
from coppice.text import bandwidth_text, percent_text, plural, rate_line

if TYPE_CHECKING:
    from coppice.bounds.figures import BoundFigures
    from coppice.bounds.result import Bound


__all__ = ["bound", "bound_fields"]


@with_options(
    "topology boxes collective root weights trees ranks relays in_network rates settings round_digits as_json"
)
def bound(
    asked: ProblemOptions,
    *,
    trees: TreesOption = None,
    in_network: InNetworkOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the best rate that a collective can have on a topology, exactly, and the cut that sets it.

    No schedule is faster than this, whatever its algorithm: the bytes that must cross the bottleneck cut need
    that long. Rates are GB/s (1e9 bytes per second), algbw and busbw as in nccl-tests.

    \b
    Examples:
      coppice bound dgx-a100 --boxes 2 --collective all_gather
      coppice bound cluster.json --collective broadcast --root 3
      coppice bound dgx-a100 --boxes 4 --ranks 0-15 --json
      coppice bound torus --set dims=4x4x4 --collective all_to_all
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.bounds.figures import bound_figures, bound_record
    from coppice.schedule.explanation import title_of

    count, tolerance = parse_trees(trees)
    with Stages() as stages:
        stages.begin("reading the topology")
        problem = asked.load_problem()
        stages.begin("computing the bound")
        figures = bound_figures(problem, trees=count, tolerance=tolerance, in_network=in_network)
    if as_json:
        print_json(bound_record(figures))
        return
    fields = [*bound_fields(figures.bound), *_tree_fields(figures, asked=trees is not None)]
    print_fields(title_of(problem), fields)


def bound_fields(found: Bound) -> list[tuple[str, str]]:
    """The lines about a bound."""
    from coppice.bounds.describe import describe_cut

    fields = [
        ("optimum", bandwidth_text(found.algbw_gb_per_s, found.busbw_gb_per_s)),
        ("time per shard", f"{found.inv_rate} ns per byte" if found.inv_rate else "0"),
        ("bottleneck", describe_cut(found)),
    ]
    if found.attainable is not None and found.attainable != found.inv_rate:
        fields.append(("known to be reached", _compared(found, found.attainable)))
    fields += [
        (name, _compared(found, rate))
        for name, rate in found.alternatives.items()
        if name != "combined" or rate not in (found.inv_rate, found.alternatives.get("two-phase"))
    ]
    return fields


def _compared(found: Bound, inv_rate: Fraction) -> str:
    """Another rate beside the optimum, and by how much it is worse."""
    if not inv_rate or inv_rate == found.inv_rate:
        return "as fast"
    rate = f"algbw {rate_line(found.problem.shards / inv_rate)}"
    if inv_rate < found.inv_rate:
        return f"{rate}: {float(found.inv_rate / inv_rate):.4g}x as fast"
    return f"{rate}: {percent_text(1 - found.inv_rate / inv_rate)} below the optimum"


def _tree_fields(figures: BoundFigures, *, asked: bool) -> list[tuple[str, str]]:
    """The lines about the number of trees."""
    if figures.trees_per_root is None:
        return []
    if not asked:
        return [("trees per root", f"{figures.trees_per_root} suffice to reach it exactly")]
    rate = bandwidth_text(figures.algbw_gb_per_s, figures.busbw_gb_per_s)
    loss = f"{percent_text(figures.loss)} below the optimum" if figures.loss else "optimal"
    if figures.exact_with_trees:
        line = f"{rate}: {loss}"
    else:
        line = f"at most {rate}: {loss}; {percent_text(figures.open_share)} below that is known to be reached"
    return [(f"with {plural(figures.trees_per_root, 'tree')} per root", line)]
