"""`coppice design compare`: compare switched and direct-connect networks by cost and performance."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import Stages, print_json, print_lines
from coppice.cli.terminal import terminal_width
from coppice.files import write_atomically
from coppice.options import argument, option
from coppice.options.shared import JsonOption, PlotOption
from coppice.simulation.models import ALPHA_BETA
from coppice.text import columns, size_text

if TYPE_CHECKING:
    from coppice.design.purchase.market import Market, Quote


@with_options()
def compare(
    workload: Annotated[Path, argument("Ranks, ports and collectives (TOML or JSON).", metavar="WORKLOAD")],
    *,
    prices: Annotated[Path, option("Price list (TOML or JSON).", metavar="FILE")],
    oversubscription: Annotated[
        str,
        option("Of the leaves of switched networks.", metavar="LIST"),
    ] = "1,2",
    csv: Annotated[Path | None, option("Write all figures as CSV.", metavar="FILE")] = None,
    picture: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare networks for a workload by cost and performance: switched fabrics, tori, the best direct-connect graphs.

    Every network is sized with the parts of the price list. Up to 128 ranks its collectives are planned and simulated,
    all groups at once; above that the exact bound counts. The least cost per unit of performance comes first.

    \b
    Examples:
      coppice design compare examples/network-workload.toml --prices examples/network-prices.toml
      coppice design compare workload.json --prices prices.json --oversubscription 1,2,4 --csv all.csv --plot all.svg
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.comparison.plot import check_picture
    from coppice.design.purchase.market import compare_networks, csv_text, draw
    from coppice.design.purchase.request import read_prices, read_workload
    from coppice.topology.model import exact_rate

    ratios = [exact_rate(part.strip(), where="--oversubscription") for part in oversubscription.split(",")]
    if picture is not None:
        check_picture(picture)
    wanted, listed = read_workload(workload), read_prices(prices)
    with Stages() as stages:
        market = compare_networks(
            wanted, listed, oversubscriptions=[Fraction(ratio) for ratio in ratios], on_progress=stages.begin
        )
    if csv is not None:
        write_atomically(csv, csv_text(market).encode())
    if picture is not None:
        draw(market, picture)
    if as_json:
        print_json("design-compare", market.record())
        return
    print_lines(_lines(market))


def _lines(market: Market) -> list[str]:
    """The printed comparison."""
    from coppice.design.purchase.performance import MOST_SIMULATED

    workload, prices = market.workload, market.prices
    how = (
        "simulated, all groups at once" if workload.ranks <= MOST_SIMULATED else "bounds of each group alone"
    ) + f" (model {ALPHA_BETA.text})"
    lines = [
        f"# networks for {workload.ranks} ranks in {workload.hosts} hosts of {workload.host_ports} ports; {how}"
    ]
    for place, use in enumerate(workload.collectives, start=1):
        groups = use.groups(workload.ranks)
        lines.append(
            f"# {place}: {use.count} x {use.collective} of {size_text(use.size_bytes)} in {len(groups)} "
            f"group(s) of {len(groups[0])}"
        )
    failing = workload.failures
    if failing.links or failing.hosts:
        lines.append(
            f"# slowdown: bound after {failing.links} cable(s) and {failing.hosts} host(s) failed over that before, "
            f"mean of {failing.samples} samples"
        )
    names = [f"{place} us" for place in range(1, len(workload.collectives) + 1)]
    heads = ["network", "switches", "cables", prices.currency, *names, "iteration us"]
    heads += ["slowdown", f"{prices.currency} s", ""]
    spare = [1, 2, *range(4, 4 + len(names)), 4 + len(names) + 1]
    best = market.quotes[0].cost_per_rate
    rows = [heads, *(_row(quote, best) for quote in market.quotes)]
    return [*lines, "", *columns(rows, "l" + "r" * (len(heads) - 1), max_width=terminal_width(), spare=spare)]


def _row(quote: Quote, best: float) -> list[str]:
    parts, lost = quote.offer.parts, quote.slowdown
    slow = "-"
    if lost is not None:
        slow = f"{lost.mean:.2f}" if lost.mean < float("inf") else "cut off"
        if 0 < lost.cut_off < 1:
            slow += f" ({lost.cut_off:.0%} cut off)"
    return [
        quote.offer.name,
        str(parts.num_switches),
        f"{parts.num_cables:,}",
        f"{quote.cost:,.0f}",
        *(f"{each.time_us:,.1f}" for each in quote.timings),
        f"{quote.iteration_us:,.0f}",
        slow,
        f"{quote.cost_per_rate:,.1f}",
        "best" if quote.cost_per_rate == best else f"{quote.cost_per_rate / best:.2f} x" if best else "",
    ]
