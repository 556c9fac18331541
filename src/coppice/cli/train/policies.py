"""`coppice train policy`, `compare`, `tune` and `advise`: simulate policies on a workload or a job, and choose one."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from coppice.cli.options.declaring import with_options
from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.train.jobs import LAYOUT_OPTIONS, load_job
from coppice.iteration.job_options import JobOptions
from coppice.options import argument, option, parse_settings
from coppice.options.names import POLICIES
from coppice.options.shared import JobsOption, JsonOption, PlotOption
from coppice.text import columns, percent_text, plural, seconds_text, size_text

if TYPE_CHECKING:
    from coppice.iteration.job.compared import ComparedPolicies, ComparedPolicy
    from coppice.iteration.job.tuned import TunedPolicy


@with_options()
def policy(
    workload: Annotated[
        str,
        argument(
            "JSON file: forward and backward (seconds of each layer), bytes (of its gradients), bytes_per_second, "
            "message_seconds, workers; - is standard input.",
            metavar="WORKLOAD",
        ),
    ],
    *,
    name: Annotated[str, option(f"One of: {', '.join(POLICIES)}.", "--policy", metavar="NAME")] = "wfbp",
    settings: Annotated[
        list[str] | None,
        option("Option of the policy; may be repeated.", "--set", metavar="KEY=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate training iterations under a policy, and print the steady-state time.

    Layers are computed in turn, forward and then backward; their gradients cross one network, a message at a time. The
    lower bound holds for every policy of the same kind.

    \b
    Examples:
      coppice train policy workload.json --policy ddp --set bucket_bytes=4000000
      coppice train policy workload.json --policy breadth-first --set stages=4 --set chunks=2 --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.layers import read_workload
    from coppice.iteration.policies.catalogue import policy_named
    from coppice.iteration.predicted import predict

    found = predict(read_workload(workload), name, parse_settings(settings or (), option="--set"))
    if as_json:
        print_json("train-policy", found.record())
        return
    least = found.lower_bound_seconds
    more = f": the iteration takes {found.iteration_seconds / least - 1:.3%} more" if least else ""
    repeated = plural(found.period, "iteration") if found.period else "never within those simulated"
    fields = [
        ("iteration", f"{found.iteration_seconds:.6g} s"),
        ("lower bound", f"{least:.6g} s{more}"),
        ("computes", f"{found.compute_seconds:.6g} s"),
        ("repeats after", repeated),
    ]
    if found.staleness:
        late = plural(found.staleness, "iteration")
        fields.append(("staleness", f"gradients are {late} late: this is not the training of one device"))
    print_fields(f"{name}: {policy_named(name).about}", fields)


@with_options(f"job policies picture jobs {LAYOUT_OPTIONS} collectives model rates settings ...")
def compare(
    options: JobOptions,
    *,
    policies: Annotated[
        str,
        option(
            "Policies with commas between them, joined by + where they are composed; all.",
            "--policy",
            metavar="LIST",
            was=["--policies"],
        ),
    ] = "all",
    picture: PlotOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a job, or a workload of layers (.json), under policies, and print a table, the fastest first.

    The baseline (none) runs one forward and one backward pass in turn, and nothing overlaps. Of `all`, the best
    composition of an order, a policy of gradients and policies inside layers is found by trying the two best of each
    together. A policy that does not suit says why in a sentence.

    \b
    Examples:
      coppice train compare gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=4,pp=2 --global-batch 32
      coppice train compare job.toml --policy ddp,dear,dear+breadth-first --plot policies.png
      coppice train compare workload.json --policy bytescheduler,p3,ddp --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.comparison.plot import check_picture
    from coppice.iteration.job.compared import compare_on_layers, compare_policies, plot_policies

    names = tuple(name.strip() for name in policies.split(","))
    if picture is not None:
        check_picture(picture)
    layers = options.layers()
    with Stages() as stages:
        if layers is not None:
            title = options.job
            stages.begin("simulating")
            found = compare_on_layers(layers, names, processes=jobs)
        else:
            asked = load_job(options)
            title = f"{asked.name} on {asked.machines.name}"
            stages.begin("simulating")
            found = compare_policies(asked, names, processes=jobs)
    if picture is not None:
        plot_policies(found, picture, title=title)
    if as_json:
        print_json("train-compare", {"job": title, **found.record()})
        return
    print_lines(_text(title, found))


def _text(title: str, found: ComparedPolicies) -> list[str]:
    """The table, and below it what does not suit."""
    lines = [f"{title}: {plural(len(found.rows), 'row')}"]
    for family in found.baselines:
        least = seconds_text(found.compute_seconds(family))
        lines.append(f"no row takes less than {least}, the computation of the busiest device alone")
        rows: list[tuple[str, ...]] = [
            ("policy", "iteration", "gain", "lower bound", "exposed", "messages", "memory")
        ]
        rows += [_cells(found, each) for each in found.rows if each.family == family]
        lines += columns(rows, "lrrrrrr")
    if found.refused:
        lines.append("do not suit:")
        lines += [f"  {each.name}: {each.reason}" for each in found.refused]
    return lines


def _cells(found: ComparedPolicies, each: ComparedPolicy) -> tuple[str, ...]:
    from fractions import Fraction

    from coppice.iteration.job.compared import gain_of

    baseline = found.baselines[each.family]
    gain = gain_of(each, baseline)
    late = f" ({plural(each.staleness, 'iteration')} late)" if each.staleness else ""
    return (
        f"{each.name}{late}",
        seconds_text(each.seconds),
        "" if each is baseline else percent_text(Fraction(round(gain, 4)), most_decimals=1),
        seconds_text(each.lower_bound_seconds),
        "" if each.exposed_seconds is None else seconds_text(each.exposed_seconds),
        "" if each.messages is None else str(each.messages),
        ""
        if each.memory_bytes is None
        else f"{each.memory_bytes / 1e9:.3g} GB{'' if each.fits else ', too much'}",
    )


@with_options(f"job policy beside {LAYOUT_OPTIONS} collectives model rates settings ...")
def tune(
    options: JobOptions,
    *,
    policy: Annotated[str, option("The policy to tune.", metavar="NAME")],
    beside: Annotated[
        str | None,
        option(
            "Policies of the job beside it, joined by +.",
            metavar="NAME",
            was=["--pipeline-order +{}", "--order +{}", "--overlap +{}"],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tune a policy on a job, or on a workload of layers (.json), by simulation.

    The policy's own tuner proposes settings, which are then tried at halves and doubles. Prints the best, the time
    with the defaults beside theirs, and which values of a setting take no more than 1% longer.

    \b
    Examples:
      coppice train tune workload.json --policy bytescheduler
      coppice train tune gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=4,pp=2,dp=2 --policy ddp --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.job.tuned import tune_on_job, tune_on_layers

    layers = options.layers()
    with Stages() as stages:
        stages.begin("simulating")
        if layers is not None:
            title, found = options.job, tune_on_layers(layers, policy)
        else:
            asked = load_job(replace(options, policy=beside))
            title = f"{asked.name} on {asked.machines.name}"
            found = tune_on_job(asked, policy)
    if as_json:
        print_json("train-tune", {"job": title, **found.record()})
        return
    print_fields(f"{found.policy} on {title}", _fields(found))


def _fields(found: TunedPolicy) -> list[tuple[str, str]]:
    best = ", ".join(f"{key}={_value(key, value)}" for key, value in found.settings.items())
    default = f"{seconds_text(found.default_seconds)} with the defaults"
    if found.default_seconds < inf:
        default += f": tuning gains {1 - found.seconds / found.default_seconds:.2%}"
    else:
        default = f"the defaults do not suit: {found.default_reason}"
    fields = [
        ("best", best or "nothing to tune"),
        ("iteration", seconds_text(found.seconds)),
        ("defaults", default),
    ]
    for key, each in found.flat.items():
        words = f"{key} from {_value(key, each.least)} to {_value(key, each.most)}"
        fields.append(("within 1%", f"{words}; up to {seconds_text(each.worst_seconds)} around that"))
    fields.append(("tried", plural(found.trials, "setting")))
    return fields


def _value(key: str, value: Any) -> str:
    """A value, bytes of 1 KiB or more with a unit."""
    if key.endswith("_bytes") and value is not None and value >= 1024:
        return size_text(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@with_options(f"job jobs {LAYOUT_OPTIONS} collectives model rates settings ...")
def advise(options: JobOptions, *, jobs: JobsOption = None, as_json: JsonOption = False) -> None:
    """Recommend a policy for a job, or for a workload of layers (.json).

    Compares all policies as `train compare` does; says how much of the possible gain, from the baseline to what none
    of them beats, the simplest good one takes, how much is left, and what PyTorch, Megatron-LM or DeepSpeed switch on
    by a flag.

    \b
    Examples:
      coppice train advise workload.json
      coppice train advise gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=4,pp=2,dp=2 --global-batch 32 --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.job.advice import advise as advice_of
    from coppice.iteration.job.compared import compare_on_layers, compare_policies

    layers = options.layers()
    with Stages() as stages:
        stages.begin("simulating")
        if layers is not None:
            title, found = options.job, compare_on_layers(layers, processes=jobs)
        else:
            asked = load_job(options)
            title = f"{asked.name} on {asked.machines.name}"
            found = compare_policies(asked, processes=jobs)
    advice = advice_of(found)
    if as_json:
        print_json("train-advise", {"job": title, **advice.record(), "sentences": advice.sentences()})
        return
    print_lines([f"{title}:", *advice.sentences()])
