"""`coppice switch model`: closed-form performance of in-network aggregation systems."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.options.measuring import chosen_model
from coppice.cli.output import print_json, print_lines
from coppice.cli.terminal import terminal_width
from coppice.errors import InputError
from coppice.options import argument, option, parse_settings
from coppice.options.names import AGGREGATING
from coppice.options.shared import (
    USUAL_SIZE,
    BoxesOption,
    JsonOption,
    ModelOption,
    PlotOption,
    SetOption,
    SizeOption,
)
from coppice.text import columns, parse_size, plural, short_size, size_text, time_text

if TYPE_CHECKING:
    from coppice.innetwork.systems.estimate import AggregationCase
    from coppice.innetwork.systems.registry import AggregationSweep

_HOSTS = ("ring", "sharded-ps", "tree", "ps")


@with_options()
def model(
    systems: Annotated[
        str | None,
        argument(
            "Names with commas between them, of " + ", ".join((*AGGREGATING, *_HOSTS)) + " [default: all].",
            metavar="SYSTEMS",
        ),
    ] = None,
    *,
    workers: Annotated[int, option("GPUs that take part.", ge=2)] = 8,
    gb_per_s: Annotated[str, option("Rate of a worker's link per direction, GB/s.", metavar="RATE")] = "12.5",
    size: SizeOption = USUAL_SIZE,
    slots: Annotated[
        int | None,
        option("Slots (aggregators) of the switch [default: 128, 40,000 of ATP].", ge=1),
    ] = None,
    loss: Annotated[
        float,
        option("Packet loss probability per direction.", metavar="P"),
    ] = 0.0,
    further: Annotated[
        list[str] | None,
        option(
            "Anything else of the case: rtt_us (from a packet's last bit to its answer: 6), timeout_us (until a "
            "worker sends a packet again: 10,000), jobs, tiers, gpus, nics, box_gb_per_s, server_gb_per_s, "
            "adding_gb_per_s, recirculation_gb_per_s, pass_us, values, window, message_bytes, table_pairs, skew_us, "
            "radix, trees, racks, racks_with_boxes, uplink_gb_per_s; may be repeated.",
            "--case",
            metavar="KEY=VALUE",
            was=["--rtt-us rtt_us={}", "--timeout-us timeout_us={}"],
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        option("Over a range of one of these.", metavar="workers|slots|loss"),
    ] = None,
    over: Annotated[
        str | None,
        option("Values of the range, such as 2,8,32.", "--sweep-values", metavar="LIST", was=["--values"]),
    ] = None,
    beside: Annotated[
        str | None,
        option(
            "The best share in the network, with the rest by hosts at the same time; on a topology ring or "
            "forest.",
            "--split",
            metavar="ring|ps",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        option("On the links of a cluster instead of bare figures.", metavar="TOPOLOGY"),
    ] = None,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    priced: ModelOption = None,
    picture: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the closed-form performance of in-network aggregation systems: throughput, time, switch memory, error.

    Every line names its formula; `docs/in-network.md` derives them. Throughput is that of a tensor that never ends,
    time that of one of the given size, error the bound for values up to 1. With a topology its links, its boxes and its
    switches that add count, and the exact bound stands beside.

    \b
    Examples:
      coppice switch model --workers 8 --gb-per-s 12.5 --size 64M
      coppice switch model switchml,fpisa,ring --slots 64 --loss 0.001 --case timeout_us=1000
      coppice switch model switchml,atp,ring --sweep slots --plot slots.png
      coppice switch model switchml,sharp --slots 32 --split ring
      coppice switch model sharp,nvls-tree --topology dgx-h100 --boxes 4
      coppice switch model sharp@spine* --topology fat-tree --split forest
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.systems.estimate import AggregationCase
    from coppice.innetwork.systems.registry import MODELLED
    from coppice.innetwork.systems.registry import sweep as swept

    asked = [*MODELLED] if systems is None else [word.strip() for word in systems.split(",")]
    size_bytes = parse_size(size, option="--size")
    if picture is not None and sweep is None:
        raise InputError("--plot draws a sweep: give --sweep workers, slots or loss.")
    if over is not None and sweep is None:
        raise InputError("--sweep-values are those of a sweep: give --sweep workers, slots or loss.")
    if topology is not None:
        if sweep is not None:
            raise InputError("expected bare figures for a sweep, found --topology: leave one of them out.")
        wanted = asked if systems is not None else [*AGGREGATING]
        found = load_topology(topology, boxes=boxes, settings=settings)
        _on_cluster(found, wanted, size_bytes, priced, beside, as_json=as_json)
        return
    if boxes is not None or settings or priced is not None:
        raise InputError(
            "--boxes, --set and --model go with --topology, found them without it: give a topology, or --case."
        )
    case = AggregationCase(
        workers=workers,
        gb_per_s=_rate(gb_per_s, "--gb-per-s"),
        slots=slots,
        loss=loss,
        **_further(further or ()),
    )
    if sweep is not None:
        if beside is not None:
            raise InputError("expected one of --sweep and --split, found both: leave one out.")
        result = swept(asked, case, size_bytes, over=sweep, values=None if over is None else _values(over))
        if picture is not None:
            from coppice.comparison.plot import plot_sweep

            plot_sweep(result, picture)
        if as_json:
            print_json("switch-model-sweep", result.record())
        else:
            print_lines(_swept_text(result))
        return
    _table(asked, case, size_bytes, beside, as_json=as_json)


def _table(
    asked: list[str], case: AggregationCase, size_bytes: int, beside: str | None, *, as_json: bool
) -> None:
    """One case: systems by time."""
    from coppice.innetwork.systems.hosts import YARDSTICKS, ring
    from coppice.innetwork.systems.registry import estimates
    from coppice.innetwork.systems.splitting import split

    found, refused = estimates(asked, case, size_bytes)
    found.sort(key=lambda each: each.time_us)
    by_ring = ring(case, size_bytes).time_us
    splits = {}
    for each in found if beside is not None else ():
        if each.system not in YARDSTICKS:
            splits[each.system] = split(each.system, case, beside=beside or "")
    if as_json:
        rows = [
            {**each.record(), "gain_over_ring": by_ring / each.time_us}
            | ({"split": splits[each.system].record()} if each.system in splits else {})
            for each in found
        ]
        print_json(
            "switch-model",
            {"size_bytes": size_bytes, "workers": case.workers, "systems": rows, "refusals": refused},
        )
        return
    lost = f", loss {case.loss:g} each way and {case.timeout_us:g} us until resent" if case.loss else ""
    slots = "" if case.slots is None else f", {plural(case.slots, 'slot')}"
    lines = [
        f"# all-reduce of {short_size(size_bytes)} among {case.workers} workers,",
        f"# {float(case.gb_per_s):g} GB/s each way, RTT {case.rtt_us:g} us{slots}{lost}",
        "#",
    ]
    if case.loss:
        lines.insert(2, "# hosts by themselves are modelled without loss, which their transport repairs")
    table = [["# system", "GB/s", "time", "of ring", "memory", "error", "formula"]]
    table += [
        [
            f"  {each.system}",
            f"{each.gb_per_s:.4g}",
            time_text(each.time_us),
            f"{by_ring / each.time_us:.3g}x",
            "-" if each.memory_bytes is None else size_text(each.memory_bytes),
            "-" if each.error is None else f"{each.error:.2g}",
            each.model,
        ]
        for each in found
    ]
    lines += columns(table, "lrrrrrl", max_width=terminal_width(), spare=[5, 4, 6], heads=1)
    lines += [f"  {name}: {words}" for name, words in refused.items()]
    if splits:
        lines += ["", f"part in the network, the rest by {beside} over the same links:"]
        lines += columns(
            [
                [f"  {name}", f"{float(1 / best.inv_rate):.4g} GB/s,", best.words]
                for name, best in splits.items()
            ],
            "lrl",
        )
    print_lines(lines)


def _on_cluster(
    topology: Any,
    wanted: list[str],
    size_bytes: int,
    priced: str | None,
    beside: str | None,
    *,
    as_json: bool,
) -> None:
    """The systems on the links of a cluster, and the best split of each."""
    from coppice.bounds.problem import Problem
    from coppice.collectives import Collective
    from coppice.comparison.in_network import modelled_systems, split_on_cluster

    costs = chosen_model(priced)
    found = modelled_systems(
        Problem(topology, Collective.ALL_REDUCE), wanted, sizes=[size_bytes], model=costs
    )
    splits = {
        name: split_on_cluster(placed.topology, placed.system, algorithm=beside)
        for name, placed in found.placed.items()
        if beside is not None
    }
    if as_json:
        extra = {"splits": {name: each.record() for name, each in splits.items()}} if splits else {}
        print_json(
            "switch-model-cluster",
            {
                "topology": topology.name,
                "model_name": costs.name,
                "model": costs.name,
                **found.record(),
                **extra,
            },
        )
        return
    lines = [
        f"# all-reduce of {short_size(size_bytes)} on {topology.name} ({topology.num_ranks} ranks)",
        f"# closed forms on its links, messages cost as in {costs.text}",
        "#",
    ]
    rows = [["# system", "links (GB/s)", "bound (GB/s)", "time", "algbw (GB/s)", "trees"]]
    rows += [
        [
            f"  {row.system}",
            f"{float(1 / found.placed[row.system].inv_rate):.6g}",
            f"{float(1 / found.bounds[row.system]):.6g}",
            time_text(row.time_us),
            f"{row.algbw_gb_per_s:.4g}",
            found.placed[row.system].where,
        ]
        for row in found.fastest_first(size_bytes)
    ]
    lines += (
        columns(rows, "lrrrrl", max_width=terminal_width(), spare=[5, 4], heads=1) if len(rows) > 1 else []
    )
    lines += [f"  {name}: {words}" for name, words in found.refused.items()]
    if splits:
        lines += ["", f"part in the network, the rest by {beside} over the same links:"]
        lines += [f"  {name}{each.words.removeprefix(each.system)}" for name, each in splits.items()]
    print_lines(lines)


def _swept_text(found: AggregationSweep) -> list[str]:
    """Bytes over time of each system at each value."""
    lines = [f"# GB/s of an all-reduce of {short_size(found.size_bytes)}, by {found.over}", "#"]
    rows = [[f"# {found.over}", *found.found]]
    rates = {name: found.goodput(name) for name in found.found}
    rows += [
        [
            f"  {value:g}",
            *("-" if (rate := rates[name][at]) is None else f"{rate:.4g}" for name in found.found),
        ]
        for at, value in enumerate(found.values)
    ]
    spare = list(range(len(rows[0]) - 1, 1, -1))
    lines += columns(rows, "l" + "r" * len(found.found), max_width=terminal_width(), spare=spare, heads=1)
    return [*lines, *(f"  {name}: {words}" for name, words in found.refused.items())]


def _further(texts: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """The values of --case, of the types of the fields."""
    from coppice.innetwork.systems.estimate import AggregationCase
    from coppice.text import suggestion

    own = ("workers", "gb_per_s", "slots", "loss")
    kinds = {each.name: str(each.type) for each in fields(AggregationCase) if each.name not in own}
    given = {}
    for key, text in parse_settings(texts, option="--case").items():
        if key not in kinds:
            raise InputError(
                f"expected --case with a field of the case, found {key!r}: {suggestion(key, kinds)}"
            )
        if "Fraction" in kinds[key]:
            given[key] = _rate(text, f"--case {key}")
            continue
        try:
            given[key] = int(text) if kinds[key].startswith("int") else float(text)  # type: ignore[assignment]
        except ValueError:
            raise InputError(f"expected --case {key} to be a number, found {text!r}.") from None
    return given


def _rate(text: str, where: str) -> Fraction:
    from coppice.topology.model import exact_rate

    return exact_rate(text, where=where)


def _values(text: str) -> list[float]:
    """The value of --sweep-values."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"expected --sweep-values such as 2,8,32, found {text!r}.") from None
