"""`coppice compare`: compare all algorithms over sizes: winners, reasons, and distance from the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import asdict, replace

from coppice.cli import with_flags
from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import ProblemOptions
from coppice.cli.options.measuring import AssumeOption, chosen_model
from coppice.cli.output import print_json, print_lines, progress_bar
from coppice.cli.terminal import keeps, terminal_width
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.options import argument, option
from coppice.options.names import AGGREGATING
from coppice.options.shared import JsonOption, PlotOption
from coppice.text import columns, parse_sizes
from coppice.verbs.simulating import CompareOptions

if TYPE_CHECKING:
    from coppice.comparison.in_network import ModelledSystems
    from coppice.comparison.outcome import Comparison

_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("in_network", "order", "relay_gpus", "weights", "demands")
}
"""Options that a refusal may name."""


@with_options(
    "topology systems collective sizes algorithms synthesize seed synthesis_time_limit_s order relay_gpus in_network "
    "boxes gain every csv picture results jobs model assume root weights demands ranks relays rates settings "
    "round_digits as_json"
)
def compare(
    asked: ProblemOptions,
    options: CompareOptions,
    *,
    systems: Annotated[
        str | None,
        argument(
            "After --in-network: systems to model, such as sharp,nvls,switchml; "
            "switchml@spine* says which switches add. All: " + ", ".join(AGGREGATING) + ".",
            metavar="SYSTEMS",
        ),
    ] = None,
    boxes: Annotated[
        str | None,
        option("Number of boxes of a box preset; a list such as 1,2,4,8 with --gain.", metavar="N"),
    ] = None,
    gain: Annotated[
        bool,
        option("Instead: what the optimal plan gains over ring and hierarchical, by number of boxes."),
    ] = False,
    every: Annotated[
        bool, option("Print every algorithm at every size, not only the best.", "--all")
    ] = False,
    csv: Annotated[Path | None, option("Write every algorithm at every size as CSV.", metavar="FILE")] = None,
    picture: PlotOption = None,
    assume: AssumeOption,
    rates: Annotated[
        str | None,
        option(
            "Rates of a preset: nominal (default), measured (the achievable class), or nominal,measured for both.",
            metavar="CLASS",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate every algorithm at every size, and print the winners, the reasons, and the distance from the bounds.

    The limit is the least time of each size that `coppice bound --size` proves: no schedule takes less. Times are
    simulated: the printed model says what they hold.

    \b
    Examples:
      coppice compare dgx-h100 --boxes 4 --collective all_reduce --sizes 1K:4G
      coppice compare dgx-h100 --boxes 4 --plot all_reduce.png --csv all_reduce.csv
      coppice compare torus --set dims=8x8 --relay-gpus --algorithm forest,ring,2d-torus
      coppice compare cluster.json --collective all_to_all --results sweep.jsonl --jobs 8
      coppice compare dgx-a100 --boxes 4 --rates nominal,measured
      coppice compare dgx-a100 --boxes 2 --collective all_gather --method tacos,syccl
      coppice compare dgx-h100 --boxes 1,2,4,8,16 --gain --sizes 1G
      coppice compare fat-tree --in-network switchml@leaf*,sharp@* --sizes 1K:1G:32
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.comparison.gain import gain as find_gain
    from coppice.comparison.gain import gain_lines, gain_words
    from coppice.comparison.plot import check_picture, plot
    from coppice.comparison.sweep import compare as run_comparison
    from coppice.comparison.table import csv_text

    wanted, counts, classes = _sizes(options.sizes), _counts(boxes), _classes(rates)
    modelled: list[str] = []
    if systems is not None:
        asked, modelled = _with_systems(asked, systems)
        if options.in_network is not True:
            raise InputError(
                f"expected --in-network before systems that add in the network, found {systems} without it."
            )
        if gain:
            raise InputError("--gain compares algorithms only: leave out the systems after --in-network.")
        options = replace(options, in_network=None)
    if gain and (csv or picture or options.results or options.synthesize or len(classes) > 1):
        raise InputError(
            "--gain prints its own table: leave out --csv, --plot, --results, --method and all rates but one."
        )
    if not gain and len(counts) > 1:
        raise InputError(
            f"expected one number of boxes, found --boxes {boxes}: give one, or a list with --gain."
        )
    if options.results is not None and len(classes) > 1:
        raise InputError(
            "a results file holds one problem: give `--results` with one class of rates at a time."
        )
    if picture is not None:
        check_picture(picture)
    options = replace(options, sizes=wanted, model=chosen_model(options.model, assume))
    if gain:
        with progress_bar() as on_progress:
            problems = {
                count or 1: replace(asked, boxes=count, rates=classes[0]).load_problem() for count in counts
            }
            found = find_gain(
                problems,
                wanted[-1],
                model=options.model,
                order=options.order,
                relay_gpus=options.relay_gpus is True,
                in_network=options.in_network is True,
                jobs=options.jobs,
                on_progress=on_progress,
            )
        if as_json:
            print_json("compare-gain", found.record())
        else:
            print_lines(
                [
                    *gain_lines(found, max_width=terminal_width()),
                    "",
                    *gain_words(found),
                    f"simulated with the model {found.model.text}.",
                ]
            )
        return
    keeps(None if options.results is None else Path(options.results))
    with progress_bar() as on_progress:
        made = [
            run_comparison(
                replace(asked, boxes=counts[0], rates=rate_class).load_problem(),
                systems=modelled,
                on_progress=on_progress,
                **asdict(options),
            )
            for rate_class in classes
        ]
    if csv is not None:
        write_atomically(csv, csv_text(made).encode())
    if picture is not None:
        plot(made[0], picture)
    if as_json:
        print_json(
            "compare-several" if len(made) > 1 else "compare",
            {"comparisons": [each.record() for each in made]} if len(made) > 1 else made[0].record(),
        )
        return
    print_lines(_text(made, every=every))


def _sizes(text: Any) -> tuple[int, ...]:
    return parse_sizes(text, option="--sizes")


def _text(made: Sequence[Comparison], *, every: bool) -> list[str]:
    """The printed comparison."""
    from coppice.bounds.describe import describe_cut
    from coppice.comparison.ranges import pick_lines, pick_title
    from coppice.comparison.table import (
        algorithm_lines,
        best_lines,
        modelled_lines,
        range_lines,
        refusal_lines,
        synthesis_lines,
    )
    from coppice.schedule.explanation import title_of

    first = made[0]
    problem, model = first.problem, first.model
    optimum = f"{float(first.optimum.algbw_gb_per_s):.6g} GB/s algbw: {describe_cut(first.optimum)}"
    without = first.optimum.alternatives.get("without in-network")
    if without:
        optimum = (
            f"{float(first.optimum.algbw_gb_per_s):.6g} GB/s algbw with switches that copy and add, "
            f"{float(problem.shards / without):.6g} GB/s without"
        )
    lines = [
        f"# {title_of(problem)}",
        f"# model: {model.text}",
        f"# optimum: {optimum}",
        f"# latency bound: {first.latency.time_us:g} us: {first.latency.why}",
        "#",
        *best_lines(first, made[1] if len(made) > 1 else None, max_width=terminal_width()),
    ]
    if every:
        lines += ["#", *algorithm_lines(first, max_width=terminal_width())]
    lines += ["", "best per size", *(f"  {line}" for line in range_lines(first))]
    if first.synthesized:
        lines += ["", "synthesised", *(f"  {line}" for line in synthesis_lines(first))]
    if first.picks:
        lines += ["", pick_title(first.picks, model), *(f"  {line}" for line in pick_lines(first.picks))]
    if first.helped is not None:
        rate = f"optimum {float(first.helped.optimum.algbw_gb_per_s):.6g} GB/s algbw"
        lines += ["", f"in-network: with switches that copy and add ({rate})"]
        lines += [f"  {line}" for line in range_lines(first.helped)]
    if first.modelled is not None:
        lines += [
            "",
            *_modelled_text(first.modelled, model.name),
            *modelled_lines(first, max_width=terminal_width()),
        ]
        lines += [f"  {name}: {refusal}" for name, refusal in first.modelled.refused.items()]
    if first.left_out:
        lines += ["", "do not apply", *(f"  {with_flags(line, _FLAGS)}" for line in refusal_lines(first))]
    return lines


def _modelled_text(found: ModelledSystems, model: str) -> list[str]:
    """What stands above the table of modelled systems: where they lie, and what none of them can beat."""
    lines = [f"in the network: closed forms on the links of the cluster, messages cost as in {model}"]
    rows = [
        [
            name,
            f"{float(1 / placed.inv_rate):.6g} GB/s of",
            f"{float(1 / found.bounds[name]):.6g} by the exact bound,",
            placed.where,
        ]
        for name, placed in found.placed.items()
    ]
    return [*lines, *(f"  {line}" for line in columns(rows, "lrrl"))] if rows else lines


def _with_systems(asked: ProblemOptions, systems: str) -> tuple[ProblemOptions, list[str]]:
    """The problem and the systems; they may stand before the topology, as a value of --in-network would."""

    def are_systems(words: str) -> bool:
        return all(word.partition("@")[0].strip().lower() in AGGREGATING for word in words.split(","))

    if are_systems(asked.topology) and not are_systems(systems):
        asked, systems = replace(asked, topology=systems), asked.topology
    return asked, [word.strip() for word in systems.split(",")]


def _counts(boxes: str | None) -> list[int | None]:
    """The value of ``--boxes``."""
    if boxes is None:
        return [None]
    parts = boxes.split(",")
    if any(not part.strip().isdecimal() or len(part) > 7 or int(part) < 1 for part in parts):
        raise InputError(
            f"expected --boxes to be a number of 1 or more, or a list such as 1,2,4,8, found {boxes!r}."
        )
    return list(dict.fromkeys(int(part) for part in parts))


def _classes(rates: str | None) -> list[str | None]:
    """The value of ``--rates``."""
    from coppice.topology.readers.link_rates import RateClass

    if rates is None:
        return [None]
    parts = [part.strip() for part in rates.split(",")]
    if any(part not in list(RateClass) for part in parts):
        raise InputError(f"expected --rates to be nominal, measured or nominal,measured, found {rates!r}.")
    return list(dict.fromkeys(parts))
