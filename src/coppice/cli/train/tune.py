"""`coppice train tune`: tune the settings of a policy for a job."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import Stages, print_fields, print_json
from coppice.cli.train.job_options import LAYOUT_OPTIONS, load_job
from coppice.iteration.job_options import JobOptions
from coppice.options import option
from coppice.options.shared import JsonOption
from coppice.text import plural, seconds_text, size_text

if TYPE_CHECKING:
    from coppice.iteration.composing.tuned import TunedPolicy


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
    from coppice.iteration.composing.tuned import tune_on_job, tune_on_layers

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
