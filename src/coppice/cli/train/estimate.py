"""`coppice train estimate`: iteration time of a model on a cluster, and its breakdown.

`--what-if` shows the job after a change beside the job as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_fields, print_json, print_lines
from coppice.cli.train.jobs import LAYOUT_OPTIONS, load_job, load_of_job
from coppice.errors import CheckError, InputError
from coppice.iteration.job_options import JobOptions
from coppice.options import option
from coppice.options.names import CALIBRATED
from coppice.options.shared import AnchorOption, JsonOption, PlacementOption, RoutingOption
from coppice.text import columns, seconds_text
from coppice.verbs.train import anchors_of

if TYPE_CHECKING:
    from coppice.iteration.accuracy import Anchor, EstimateRange
    from coppice.iteration.job.composed import ComposedStep
    from coppice.iteration.job.job import TrainingJob
    from coppice.iteration.job.what_if import WhatIf, WhatIfRow
    from coppice.iteration.routing import RoutedLoad, RoutedStep
    from coppice.iteration.step.simulated import SimulatedStep
    from coppice.iteration.transformer import Transformer
    from coppice.iteration.workload.nets import LayeredModel
    from coppice.outputs.shapes.training import AnchorJson, ExpectedRangeJson, WayJson


_NOTHING = 1e-9

ContentionOption = Annotated[
    float,
    option("Share of a GPU that communication takes from concurrent computation.", ge=0.0, le=1.0),
]

TraceOption = Annotated[
    Path | None,
    option("Write the simulated tasks for Perfetto.", metavar="FILE"),
]

WhatIfOption = Annotated[
    list[str] | None,
    option(
        "Also with nic=x2, nvlink=x0.5, flops=x2, memory=x1.2 or memory=141 (GB), gpu=H200, drain=3 or "
        "drain=node17 (boxes), without=nic:5, slow=nic:5:x0.5, slow=node17:x0.8, or "
        "degrade=box0/nic3=50% (a NIC, GPU or switch at a share of its rate); may be repeated.",
        "--what-if",
        metavar="CHANGE",
        was=["--degrade degrade={}"],
    ),
]


def answers(
    job: TrainingJob,
    what_if: Sequence[str] | None,
) -> list[WhatIf]:
    """Results of the job as it is, then of each change; on mixed clusters each kind of box alone as well.

    Raises:
        InputError: If one is no change, or nothing is left to run on.
    """
    from coppice.iteration.job.what_if import compare_kinds, what_ifs

    found = what_ifs(job, [*what_if]) if what_if else []
    kinds = compare_kinds(job) if len(job.machines.kinds) > 1 else None
    return found if kinds is None else [*found, kinds]


def answers_record(found: Sequence[WhatIf]) -> dict[str, Any]:
    """The results as JSON values."""
    if not found:
        return {}
    return {
        "what_if": [
            {
                "change": each.change,
                "best_way": each.best.way,
                "best": each.best.way,
                "why_not": each.why_not,
                "ways": [_way_record(row) for row in each.rows],
            }
            for each in found
        ]
    }


def _way_record(row: WhatIfRow) -> WayJson:
    layout = row.layout
    return {
        "way": row.way,
        "gpu_count": row.gpus,
        "gpus": row.gpus,
        "iteration_seconds": row.seconds,
        "samples_per_second": row.samples_per_second,
        "fits": row.fits,
        "policy": row.policy,
        "layout": {
            "tp": layout.tensor,
            "pp": layout.pipeline,
            "dp": layout.data,
            "ep": layout.expert,
            "chunks": layout.chunks,
            "micro_batch": layout.micro_batch,
            "global_batch": layout.global_batch,
        },
    }


def answers_table(found: Sequence[WhatIf]) -> list[str]:
    """The results as lines: iteration time, throughput, and their change.

    Layouts found anew are compared with the healthy job laid out anew, all others with the job as it is.
    """
    if not found:
        return []
    base, anew = found[0].rows[0], found[0].rows[-1] if found[0].change == "none" else found[0].rows[0]
    rows = [("what if", "way", "GPUs", "iteration", "samples/s", "change", "")]
    for each in found:
        name = "as it is" if each.change == "none" else each.change
        for row in each.rows:
            like = anew if row.searched and row is not anew else base
            change = row.samples_per_second / like.samples_per_second - 1
            note = "" if row.fits else "does not fit"
            if len(each.rows) > 1 and row is each.best:
                note = "best" if row.fits else note
            if row.policy != base.policy:
                note = ", ".join(filter(None, (note, f"under {row.policy}")))
            rows.append(
                (
                    name,
                    "" if row.way == "as it is" else row.way,
                    str(row.gpus),
                    seconds_text(row.seconds),
                    f"{row.samples_per_second:.4g}",
                    "" if row is base else f"{change:+.1%}",
                    note,
                )
            )
            name = ""
    lines = columns(rows, "llrrrrl")
    return [*lines, *(each.why_not for each in found if each.why_not)]


@with_options(
    f"job {LAYOUT_OPTIONS} policy collectives model contention anchor trace routing placement "
    "what_if rates settings as_json"
)
def estimate(
    options: JobOptions,
    *,
    contention: ContentionOption = 0.0,
    anchor: AnchorOption = None,
    trace: TraceOption = None,
    routing: RoutingOption = None,
    placement: PlacementOption = "given",
    what_if: WhatIfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a training iteration, and print its time, breakdown, critical path and memory.

    Exit code 1 if it does not fit the memory of a GPU.

    \b
    Examples:
      coppice train estimate gpt-175b --topology dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512
      coppice train estimate gpt-175b --topology dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512 \
        --shard zero1 --policy megatron --trace step.json
      coppice train estimate job.toml --anchor run.json
      coppice train estimate gpt-175b --topology dgx-h100 --boxes 128 --parallel tp=8,pp=8,dp=16 --collectives nccl
    """  # noqa: D301 (\b is for the help formatter)
    from msgspec.structs import replace as changed_fields

    from coppice.iteration.memory import MemoryFit, fit_of
    from coppice.iteration.page.page import PART_NAMES
    from coppice.iteration.trace import write_task_trace
    from coppice.iteration.transformer import Transformer
    from coppice.simulation.models import model_of
    from coppice.verbs.estimating import estimated, routed_steps, transformer_of

    asked = load_job(options)
    if contention:
        asked = replace(asked, run=changed_fields(asked.run, contention=contention))
    costs = asked.run.collectives or CALIBRATED
    if costs != CALIBRATED and what_if:
        raise InputError(
            f"expected {CALIBRATED} collectives with --what-if, found {costs}: leave --collectives out."
        )
    even, routed = asked, routed_steps(asked, routing, placement)
    if routed:
        asked = replace(asked, model=routed[0].load.model(transformer_of(asked)))
    chosen, machines = asked.model, asked.cluster
    composed = estimated(asked, anchors_of(options, anchor, load_of_job, contention=contention))
    layout, found, held = composed.layout, composed.step, composed.memory
    changed = answers(asked, what_if)
    if trace is not None:
        write_task_trace(composed.times, trace)
    skew = _routing_record(routing, placement, routed, even) if as_json else {}
    if found is None:
        _print_planned(asked, composed, {**skew, **answers_record(changed)} if as_json else None)
        if not as_json:
            print_lines(_routing_table(routed, even))
            print_lines(answers_table(changed))
        return
    fits, fit = held.total <= machines.device.memory_bytes, fit_of(held.total, machines.device.memory_bytes)
    seconds, expected, anchors = composed.seconds, composed.expected, composed.anchors
    memory = held.parts
    samples, mfu = layout.global_batch / seconds, found.mfu * found.seconds / seconds
    priced = None if costs == CALIBRATED else model_of(asked.run.model).name
    if as_json:
        print_json(
            "train-estimate",
            {
                "iteration_seconds": seconds,
                "expected_range": None if expected is None else _range_record(expected, found.seconds),
                "anchors": [_anchor_record(each) for each in anchors],
                "mfu": mfu,
                "samples_per_second": samples,
                "tokens_per_second": samples * chosen.seq if isinstance(chosen, Transformer) else None,
                "memory_bytes": held.total,
                "memory_bytes_by_part": memory,
                "memory_by_part": memory,
                "fits": fits,
                "fit": fit.value,
                "collective_costs": costs,
                "collectives": costs,
                "model_name": priced,
                "model": priced,
                "policy": asked.run.policy,
                "device": machines.device.name,
                **_record(found),
                **skew,
                **answers_record(changed),
            },
        )
    else:
        size = f"{machines.device.memory_bytes / 1e9:.0f} GB"
        room = {
            MemoryFit.YES: "",
            MemoryFit.TIGHT: f", tight: of runs so near its {size}, some ran and some did not",
            MemoryFit.NO: f": more than its {size}",
        }[fit]
        kept = ", ".join(f"{part} {value / 1e9:.3g}" for part, value in memory.items())
        fields = [
            ("iteration", f"{seconds_text(seconds)}, {100 * mfu:.3g}% of the peak (MFU)"),
            (f"as {found.order}", _beside(found)),
            _pace(chosen, samples),
            (
                "goes to",
                _shares({PART_NAMES[part]: value for part, value in found.parts.items()}, found.seconds),
            ),
            ("waits for", _shares(found.exposed, found.seconds) or "nothing but computation"),
            (
                "best order",
                f"no order takes less than {seconds_text(found.lower_bound_seconds)}: {_limit(found)}",
            ),
            ("memory", f"{held.total / 1e9:.3g} GB of a {machines.device.name}{room}"),
            ("of it (GB)", kept),
        ]
        if expected is not None:
            fields.insert(1, ("range", _range_text(expected, found.seconds)))
        for each in anchors:
            fields.insert(1, ("anchor", _anchor_text(each, seconds / found.seconds)))
        if costs != CALIBRATED:
            assumed = f"simulated with model {model_of(asked.run.model).name}"
            fields.insert(3, ("collectives", f"{costs}, all groups at once, {assumed}"))
        if routed:
            fields.insert(1, ("routing", f"{routing}: {_load_text(routed[0].load)}"))
        print_fields(f"{asked.name} on {asked.machines.name}", fields)
        print_lines(_routing_table(routed, even))
        print_lines(answers_table(changed))
    if not fits:
        raise CheckError(
            f"expected a job that fits {machines.device.memory_bytes / 1e9:.0f} GB, found {held.total / 1e9:.3g} GB: "
            "raise tp, pp or --recompute, or shard with --shard."
        )


def _load_text(load: RoutedLoad) -> str:
    return (
        f"the busiest rank has {load.busiest:.3g} times the tokens of an average one, exchanges take "
        f"{load.exchange:.3g} times as long as even ones"
    )


def _routing_table(routed: Sequence[RoutedStep], even: TrainingJob) -> list[str]:
    """What placement, copies, capacity and planned exchanges bring."""
    if not routed:
        return []
    from coppice.iteration.job.composed import simulated_job

    rows = [("placement", "busiest", "exchange", "dropped", "iteration", "change")]
    rows.append(("even routing", "1", "1", "", seconds_text(simulated_job(even).seconds), ""))
    for each in routed:
        load = each.load
        rows.append(
            (
                load.name,
                f"{load.busiest:.3g}",
                f"{load.exchange:.3g}",
                f"{100 * load.dropped:.3g}%" if load.dropped > _NOTHING else "",
                seconds_text(each.seconds),
                "" if each is routed[0] else f"{each.seconds / routed[0].seconds - 1:+.1%}",
            )
        )
    return columns(rows, "lrrrrr")


def _routing_record(
    routing: str | None, placement: str, routed: Sequence[RoutedStep], even: TrainingJob
) -> dict[str, Any]:
    """Routing as JSON values."""
    if routing is None:
        return {}
    from coppice.iteration.job.composed import simulated_job

    return {
        "routing": routing,
        "expert_placement": placement,
        "even_seconds": simulated_job(even).seconds,
        "routed": [
            {
                "name": each.load.name,
                "busiest_rank_load": each.load.busiest,
                "exchange_slowdown": each.load.exchange,
                "dropped_token_share": each.load.dropped,
                "expert_copies": each.load.copies,
                "iteration_seconds": each.seconds,
            }
            for each in routed
        ],
    }


def _range_text(expected: EstimateRange, seconds: float) -> str:
    """The range of such runs in words."""
    low, high = (seconds_text(each) for each in expected.of(seconds))
    runs = f"{expected.runs} published ones ({expected.like})"
    return f"{low} to {high}: 80% of such runs are expected there, by {runs}"


def _range_record(expected: EstimateRange, seconds: float) -> ExpectedRangeJson:
    low, high = expected.of(seconds)
    return {
        "low_seconds": low,
        "high_seconds": high,
        "expected_share": 0.8,
        "share": 0.8,
        "runs": expected.runs,
        "like": expected.like,
    }


def _anchor_text(anchor: Anchor, factor: float) -> str:
    """A measured step, and by how much it moves the estimate, in words."""
    measured, estimated = seconds_text(anchor.measured), seconds_text(anchor.estimated)
    away = f"{anchor.measured / anchor.estimated - 1:+.1%}"
    return f"{measured} measured where {estimated} is estimated ({away}): this estimate moves by {factor - 1:+.1%}"


def _anchor_record(anchor: Anchor) -> AnchorJson:
    return {"measured_seconds": anchor.measured, "estimated_seconds": anchor.estimated}


def _print_planned(asked: TrainingJob, found: ComposedStep, record: Mapping[str, Any] | None) -> None:
    """Print a job whose whole iteration a policy plans: its operations are not those of a step with its parts.

    Args:
        record: Further JSON values; None where fields are printed instead.
    """
    if record is not None:
        print_json(
            "train-estimate-plan",
            {
                "iteration_seconds": found.seconds,
                "lower_bound_seconds": found.lower_bound_seconds,
                "memory_bytes": found.memory_bytes,
                "policy": asked.run.policy,
                **record,
            },
        )
        return
    fields = [
        ("iteration", f"{seconds_text(found.seconds)} as {asked.run.policy} plans it"),
        ("best plan", f"no plan takes less than {seconds_text(found.lower_bound_seconds)}"),
        ("memory", f"{found.memory_bytes / 1e9:.3g} GB of a {asked.cluster.device.name}"),
    ]
    print_fields(f"{asked.name} on {asked.machines.name}", fields)


_BESIDE = {
    "none": "nothing overlaps",
    "fsdp": "parameters are gathered and gradients scattered beside passes",
    "megatron": "gradients are scattered and parameters gathered in buckets beside passes",
}


def _pace(model: Transformer | LayeredModel, samples_per_second: float) -> tuple[str, str]:
    """What is trained in a second: tokens of text, otherwise samples."""
    if model.sample == "sequence":
        return "tokens/s", f"{samples_per_second * getattr(model, 'seq', 1):,.0f}"
    return f"{model.sample}s/s", f"{samples_per_second:,.0f}"


def _beside(found: SimulatedStep) -> str:
    """What runs beside what, in words."""
    if found.overlap == "none" and found.given[1].order.co_scheduled:
        return "forward and backward passes run at once, nothing else overlaps"
    return _BESIDE.get(found.overlap, f"gradients are sent beside passes by policy {found.overlap}")


def _shares(seconds: Mapping[str, float], whole: float) -> str:
    """Names with their shares of the iteration; what is less than a thousandth of a percent is left out."""
    return ", ".join(
        f"{name} {100 * value / whole:.3g}%" for name, value in seconds.items() if value > 1e-5 * whole
    )


def _limit(found: SimulatedStep) -> str:
    """What the bound is the time of."""
    bounds = found.bounds
    if bounds.path >= bounds.seconds:
        return "the longest chain of passes"
    if bounds.stream_seconds >= bounds.seconds:
        return f"what {bounds.stream} does"
    return f"what {bounds.link} carries"


def _record(found: SimulatedStep) -> dict[str, Any]:
    """The simulation as JSON values."""
    bounds = found.bounds
    return {
        "order": found.order,
        "overlap": found.overlap,
        "simulated_seconds": found.seconds,
        "seconds_by_part": dict(found.parts),
        "critical_path": [
            {
                "part": each.part,
                "name": each.name,
                "group": each.group,
                "link_name": each.link,
                "link": each.link,
                "seconds": each.seconds,
            }
            for each in found.path
        ],
        "least_seconds": found.parts["compute"] + found.parts["head"] + found.parts["optimizer"],
        "lower_bound_seconds": bounds.seconds,
        "lower_bounds": {
            "path_seconds": bounds.path,
            "stream": bounds.stream,
            "stream_seconds": bounds.stream_seconds,
            "link_name": bounds.link,
            "link": bounds.link,
            "link_seconds": bounds.link_seconds,
        },
    }
