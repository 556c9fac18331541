"""`coppice simulate`: simulate a plan, its time and its critical path."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology, sorted_settings
from coppice.cli.options.measuring import AssumeOption, chosen_model
from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.terminal import terminal_width
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import argument, option
from coppice.options.shared import (
    USUAL_SIZE,
    BoxesOption,
    JsonOption,
    RatesOption,
    SetOption,
    SizesOption,
    TogetherOption,
)
from coppice.simulation.models import Model, Sharing, protocol_text
from coppice.text import (
    aligned,
    bar,
    columns,
    number,
    parse_sizes,
    percent_text,
    plural,
    short_size,
    size_text,
)
from coppice.verbs.simulating import SimulateOptions, refuse_decided

if TYPE_CHECKING:
    from coppice.schedule.plan import Plan
    from coppice.selection import Selection
    from coppice.simulation.jobs import JobResult, Together
    from coppice.simulation.simulated import Simulated
    from coppice.simulation.timeline import Timeline


class ListedParts(Struct, frozen=True, kw_only=True):
    """How much of a simulation is listed."""

    links: Annotated[int, option("busiest links: 5", ge=0)] = 5
    stages: Annotated[int, option("stages of the critical path: 12", ge=0)] = 12


@with_options(
    "plan size pieces model assume protocol channels seeds percentiles multipath algorithm library collective root "
    "boxes rates settings ..."
)
def simulate(
    options: SimulateOptions,
    plan: Annotated[
        str | None,
        argument(
            "Plan file, or set of plans; - is standard input. With `--algorithm library` a topology.",
            metavar="[PLAN]",
        ),
    ] = None,
    *,
    size: SizesOption = USUAL_SIZE,
    boxes: BoxesOption = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    assume: AssumeOption,
    together: TogetherOption = None,
    trace: Annotated[
        Path | None,
        option("Write a trace of the largest size (ui.perfetto.dev).", metavar="FILE"),
    ] = None,
    limits: Annotated[ListedParts, option("How many to list", "--list", was=["--limit"])],
    as_json: JsonOption = False,
) -> None:
    """Simulate a plan: its time at one size or many, its busiest links, and its critical path.

    Every message starts when what it depends on has arrived, pays its overhead, and crosses links of limited rate and
    latency that it shares with others. Of the model's protocols the fastest is taken at each size.
    Of a set of plans each size takes its own, under the model that the set was made for. The plan is not verified: that
    is what `coppice verify` is for.

    With `--algorithm library` each size takes what the library picks: its algorithm, protocol and channels, and of NCCL
    the rings and trees that its search finds. The library's own estimate stands beside the simulated time.

    \b
    Examples:
      coppice simulate plan.json --size 64M
      coppice simulate plan.json --size 1K:1G --protocol ll128 --channels 16
      coppice simulate plan.json --size 1M --pieces 4 --trace trace.json
      coppice simulate plans/ --size 1K:1G:32
      coppice simulate ring.json --size 16M --seeds 100
      coppice simulate ring.json --hashed-routes 1000 --percentiles
      coppice simulate --together jobs.json
      coppice simulate dgx-a100 --boxes 2 --algorithm library --collective all_reduce --size 1K:1G:32
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import read_plan
    from coppice.schedule.files.set_file import plan_set_of
    from coppice.simulation.set_times import model_of_set, simulate_set
    from coppice.simulation.simulated import simulate_sizes, simulated_record
    from coppice.simulation.timeline import critical_lines
    from coppice.simulation.trace import write_trace

    options.refuse_percentiles(
        *(["together"] if together is not None else ["trace"] if trace is not None else [])
    )
    picks = options.picks()
    if not picks and (boxes is not None or rates is not None or settings):
        raise InputError(
            "a plan has its topology: leave out --boxes, --rates and --set, or give --algorithm library."
        )
    if picks and (together is not None or plan is None):
        raise InputError(
            "expected a topology with --algorithm library, found none: name a preset or a file, without --together."
        )
    plans = None if plan is None or picks or together is not None else plan_set_of(plan)
    named = options.model
    if plans is not None and named is None and assume.overhead is None:
        named = model_of_set(plans)
    assumed = chosen_model(
        named,
        assume,
        sharing=None if together is None else Sharing.FAIR,
        protocols=None if options.protocol is None else (options.protocol,),
        channels=options.channels,
    )
    count = options.count()
    if together is not None:
        if plan is not None or options.seeds or options.multipath:
            raise InputError(
                "--together names its plans, and takes no plan, seeds or multipath: leave them out."
            )
        _simulate_jobs(Path(together), model=assumed, pieces=count, trace=trace, as_json=as_json)
        return
    if plan is None:
        raise InputError(
            "expected a plan file, or several with `--together`, found none: make one with `coppice plan -o plan.json`."
        )
    if options.percentiles:
        _count_collisions(plan, options.seeds, as_json=as_json)
        return
    sizes = parse_sizes(size, option="--size")
    if options.seeds and options.multipath:
        raise InputError("--seeds shows ideal multipath beside the seeds: leave out --multipath.")
    with Stages() as progress:
        progress.begin("reading the plan")
        several: dict[str, Any] = {
            "model": assumed,
            "pieces": count,
            "seeds": options.seeds,
            "multipath": options.multipath,
            "on_stage": progress.begin,
        }
        if picks:
            from coppice.bounds.problem import problem_of
            from coppice.comparison.library import simulate_picks

            refuse_decided(options)
            inputs, others = sorted_settings(settings, options.library or "nccl")
            topology = load_topology(plan, boxes=boxes, rates=rates, settings=others)
            problem = problem_of(topology, options.collective or Collective.ALL_REDUCE, root=options.root)
            rows = simulate_picks(problem, options.library or "nccl", sizes, settings=inputs, **several)
            loaded = rows[-1].plan
        elif plans is None:
            loaded = read_plan(plan)
            rows = simulate_sizes(loaded, sizes, **several)
        else:
            rows = simulate_set(plans, sizes, **several)
            loaded = rows[-1].plan
        shown = None
        if trace is not None:
            progress.begin("writing the trace")
            shown = write_trace(rows[-1].timeline, trace)
    if as_json:
        print_json(
            "simulate" if len(rows) == 1 else "simulate-sizes",
            simulated_record(loaded, assumed, rows, links=limits.links),
        )
        return
    title = title_of(loaded.problem)
    planners = " or ".join(dict.fromkeys(row.plan.planner or "unknown planner" for row in rows))
    traced = []
    if trace is not None:
        messages = plural(rows[-1].timeline.messages.count, "message")
        largest = f" at {short_size(sizes[-1])}, the largest size" if len(rows) > 1 else ""
        traced.append(("trace", f"{trace}: {shown} of {messages}{largest}"))
    if len(rows) > 1:
        told = rows[0].picked
        if told is not None and told.model_name is not None:
            traced.insert(0, ("estimate", f"by the {told.model_name}"))
        print_fields(title, [("plan", planners), ("model", assumed.text), *traced])
        print_lines(["", *table_lines(rows)])
        return
    print_fields(title, [*single_fields(rows[0], best=count is None), *traced])
    if limits.links:
        print_lines(["", "Busiest links", *busiest_lines(rows[0].timeline, limits.links)])
    if limits.stages:
        print_lines(
            [
                "",
                "Critical path (us)",
                *(f"  {line}" for line in critical_lines(rows[0].timeline, limits.stages)),
            ]
        )


def _count_collisions(path: str, draws: int, *, as_json: bool) -> None:
    """Count collisions of hashed routes, and print percentiles and what helps."""
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import read_plan
    from coppice.simulation.collisions import collisions

    with Stages() as progress:
        progress.begin("reading the plan")
        plan = read_plan(path)
        progress.begin("drawing hashes")
        found = collisions(plan.body, draws)
    if as_json:
        print_json("simulate-collisions", {**plan.problem.record(), **found.record()})
        return
    ids, nodes = plan.topology.node_ids, plan.topology.rank_nodes
    src, dst, share = found.worst_pair
    best, even = found.best, found.plain.even
    fields = [
        ("plan", plan.planner or "unknown planner"),
        (
            "counted",
            f"{plural(draws, 'hash')} of {plural(len(found.flows.src), 'flow')}: bytes of the busiest link",
        ),
        (
            "worst pair",
            f"{ids[nodes[src]]} -> {ids[nodes[dst]]}: on the busiest link in {percent_text(share)} of them",
        ),
    ]
    if found.exact is not None and even:
        mean = float(found.plain.chosen.mean()) / even
        known = float(found.exact) / even
        fields.append(
            ("mean", f"{number(mean)} on links that hashes choose, {number(known)} expected exactly")
        )
    if best is not found.plain:
        fields.append(("helps most", best.name))
    print_fields(title_of(plan.problem), fields)
    shares = (0.5, 0.9, 0.99, 1.0)
    rows: list[tuple[str, ...]] = [("time over that of even spreading", "p50", "p90", "p99", "worst")]
    rows += [(each.name, *(f"{each.quantile(share):.2f}" for share in shares)) for each in found.ways]
    print_lines(["", *columns(rows, "lrrrr")])


def _simulate_jobs(
    path: Path, *, model: Model, pieces: int | None, trace: Path | None, as_json: bool
) -> None:
    """Simulate the jobs of a file together, and print what becomes of each."""
    from coppice.simulation.jobs import read_jobs, simulate_together
    from coppice.simulation.trace import write_trace

    with Stages() as progress:
        progress.begin("reading the plans")
        jobs, topology = read_jobs(path, model=model, pieces=pieces)
        progress.begin("simulating")
        found = simulate_together(jobs, model=model, topology=topology)
        if trace is not None:
            progress.begin("writing the trace")
            firsts = zip(found.results, found.first.tolist(), strict=False)
            write_trace(found.timeline, trace, jobs=[(result.job.name, first) for result, first in firsts])
    if as_json:
        print_json("simulate-jobs", found.record())
        return
    fields = [("model", model.text), ("all done", f"after {number(found.time_us)} us")]
    if trace is not None:
        fields.append(("trace", str(trace)))
    print_fields(f"{plural(len(jobs), 'job')} on {found.topology.name}", fields)
    print_lines(["", *job_lines(found)])


_REASONS = {
    "start": "starting",
    "none": "messages that start at once",
    "dependency": "waiting for data",
    "engine": "waiting for engines",
    "link": "queues at links",
    "route": "queues on routes",
}


def model_fields(plan: Plan, model: Model) -> list[tuple[str, str]]:
    """Output lines about the time model."""
    return [("plan", plan.planner or "unknown planner"), ("model", model.text)]


def single_fields(row: Simulated, *, best: bool) -> list[tuple[str, str]]:
    """Output lines about one size; ``best`` means that the number of sub-chunks was chosen."""
    from coppice.simulation.timeline import time_by_reason

    timeline = row.timeline
    fields = [*_pick_fields(row), *model_fields(row.plan, timeline.model)]
    chosen = " (the best)" if best else ""
    messages = plural(timeline.messages.count, "message")
    fields += [
        ("size", f"{size_text(timeline.size_bytes)} ({timeline.size_bytes:,} bytes)"),
        ("cut into", f"{plural(timeline.pieces, 'piece')} per chunk{chosen}, {messages}"),
        ("time", _rate_text(row, timeline)),
    ]
    if timeline.protocol is not None:
        fields.append(("protocol", _protocol_line(timeline.protocol)))
    if row.hashed is not None:
        hashed = row.hashed
        count = plural(len(hashed.times_us), "seed")
        median, p99 = number(hashed.median_us), number(hashed.p99_us)
        fields.append(("hashed routes", f"median {median} us, 99th percentile {p99} us of {count}"))
        fields.append(("ideal multipath", f"{number(hashed.multipath_us)} us"))
    spent = time_by_reason(timeline)
    if timeline.time_us:
        parts = sorted(spent.items(), key=lambda item: -item[1])
        words = [f"{percent_text(_share(us, timeline.time_us))} {_REASONS[name]}" for name, us in parts if us]
        fields.append(("time goes to", ", ".join(words)))
    return fields


def _pick_fields(row: Simulated) -> list[tuple[str, str]]:
    """What a library picks, and the estimate of its own model."""
    picked = row.picked
    if picked is None:
        return []
    channels = "" if picked.channels_filled is None else f" on {plural(picked.channels_filled, 'channel')}"
    fields = [(f"{picked.library} picks", f"{picked.algorithm}{channels}")]
    if picked.cell is not None and picked.cell.time_us is not None:
        fields.append(("its estimate", f"{number(picked.cell.time_us)} us by the {picked.model_name}"))
    return fields


def _protocol_line(name: str) -> str:
    """What a protocol costs."""
    from coppice.simulation.channels import protocol as protocol_of

    found = protocol_of(name)
    share = percent_text(Fraction(found.data_bytes, found.wire_bytes))
    return (
        f"{protocol_text(name)}: {share} of the wire is data, {found.box_us:g} us per message in a box, "
        f"{found.network_us:g} us between boxes, {found.start_us:g} us to start"
    )


def table_lines(rows: Sequence[Simulated]) -> list[str]:
    """Table with a row per size, in the style of nccl-tests."""
    picks = rows[0].picked is not None
    protocols = rows[0].timeline.protocol is not None and not picks
    hashed = rows[0].hashed is not None
    heads = [("size", "(B)"), ("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("of optimum", "")]
    if hashed:
        heads += [("median", "(us)"), ("p99", "(us)"), ("multipath", "(us)")]
    heads += [("protocol", "")] * protocols + [("pieces", ""), ("busiest link", "")]
    several = len({id(row.plan) for row in rows}) > 1
    several = several and not picks
    heads[1:1] = (
        [("picks", ""), ("channels", ""), ("estimate", "(us)")] if picks else [("plan", "")] * several
    )
    lines = []
    for row in rows:
        timeline = row.timeline
        cells = [
            str(row.timeline.size_bytes),
            *(
                [row.plan.planner or "unknown planner"] * several
                if row.picked is None
                else _pick_cells(row.picked)
            ),
            *_figures(timeline),
            percent_text(Fraction(row.share_of_least)),
        ]
        if row.hashed is not None:
            cells += [number(us) for us in (row.hashed.median_us, row.hashed.p99_us, row.hashed.multipath_us)]
        link = timeline.busiest_link
        busy = (
            f"{percent_text(_share(timeline.utilisation(link), 1))} {timeline.topology.link_name(link)}"
            if link >= 0
            else "none"
        )
        if protocols:
            cells.append(protocol_text(timeline.protocol or ""))
        lines.append([*cells, str(timeline.pieces), busy])
    last = len(heads) - 1
    more = 3 if picks else int(several)
    spare = [last - 1, 3 + more, 2 + more, last]
    return aligned(heads, lines, max_width=terminal_width(), spare=spare)


def _pick_cells(picked: Selection) -> list[str]:
    cell = picked.cell
    return [
        picked.algorithm,
        "-" if picked.channels_filled is None else str(picked.channels_filled),
        "-" if cell is None or cell.time_us is None else number(cell.time_us),
    ]


def busiest_lines(timeline: Timeline, count: int) -> list[str]:
    """Lines about the busiest links: bar, utilisation, rate and name."""
    from coppice.simulation.utilisation import busiest_links

    topology = timeline.topology
    lines = []
    for link in busiest_links(timeline, count):
        share = timeline.utilisation(link)
        used, rate = percent_text(_share(share, 1)), float(topology.gb_per_s(link))
        lines.append(
            f"  {bar(share, width=24)} {used:>8}  {rate:>8.6g} GB/s  {timeline.topology.link_name(link)}"
        )
    return lines or ["  none: nothing moves"]


def job_lines(found: Together) -> list[str]:
    """Lines about jobs."""
    heads = [("job", ""), ("collective", ""), ("size", "(B)"), ("start", "(us)"), ("time", "(us)")]
    heads += [("alone", "(us)"), ("slowdown", ""), ("shared link", "")]
    rows = [
        [
            result.job.name,
            result.job.body.collective.value,
            short_size(result.job.size_bytes),
            number(result.job.start_us),
            number(result.time_us),
            number(result.alone_us),
            f"{result.slowdown:.2f}",
            _shared_text(result),
        ]
        for result in found.results
    ]
    return aligned(heads, rows, max_width=terminal_width(), spare=[3, 5, 7])


def _shared_text(result: JobResult) -> str:
    shared = result.shared
    if shared is None:
        return "none" if result.slowdown <= 1 else "none: it waits for engines"
    others = ", ".join(f"{name} {number(us)} us" for name, us in list(shared.others_us.items())[:3])
    more = len(shared.others_us) - 3
    rest = f" and {more} more" if more > 0 else ""
    return f"{shared.src} -> {shared.dst}: own {number(shared.own_us)} us, {others}{rest}"


def _figures(timeline: Timeline) -> list[str]:
    from coppice.simulation.simulated import rate_figures

    return [number(value) for value in rate_figures(timeline).values()]


def _rate_text(row: Simulated, timeline: Timeline) -> str:
    share = percent_text(Fraction(row.share_of_least))
    goal = "the optimum" if row.plan.bound is not None else "the plan's own rate"
    return (
        f"{number(timeline.time_us)} us: algbw {number(timeline.algbw_gb_per_s)} GB/s, "
        f"busbw {number(timeline.busbw_gb_per_s)} GB/s, {share} of {goal}"
    )


def _share(part: float, whole: float) -> Fraction:
    """A share for :func:`percent_text`; rounding never makes it a whole."""
    return Fraction(part) / Fraction(whole) if whole else Fraction(0)
