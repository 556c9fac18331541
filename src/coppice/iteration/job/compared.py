"""Compare policies on a job, or on a workload of layers, with each other and with lower bounds.

On a job the best composition of them stands beside them.

One picture has the time of an iteration under each policy as bars, with what none of them beats.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coppice.comparison.plot import check_picture, save_picture
from coppice.comparison.pool import chosen_executor, run
from coppice.errors import InputError
from coppice.iteration.job.composed import (
    MOST_MESSAGES,
    compose,
    composition_of,
    named_policies,
    needs_pipeline,
)
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import POLICIES, policy_named
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.pipelined.policy import Pipelined
from coppice.iteration.policies.policy import Policy
from coppice.iteration.policies.step_plans import BASELINE
from coppice.iteration.policies.whole.operations import WholePolicy
from coppice.iteration.predicted import predict
from coppice.text import seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_TOGETHER = 2
"""So many of the best of each kind are tried together."""
_KINDS = ("order", "gradients", "tensor", "recompute")
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class ComparedPolicy:
    """Row of the table: the iteration time under policies."""

    name: str  # The policies, joined by `+`; `none`: the baseline
    family: str = "job"  # Rows of the same family have the same baseline
    seconds: float  # Time from one iteration to the next
    lower_bound_seconds: float  # What no order of the same passes and messages can beat
    compute_seconds: float  # Computation of the busiest device alone, with its optimizer
    exposed_seconds: float | None  # Communication that computation waits for; None: not known
    messages: int | None  # Messages about gradients of an iteration; None: not known
    # What a GPU keeps; of a workload of layers what the policy keeps beside; None: not known
    memory_bytes: float | None
    fits: bool = True  # It fits the memory of a GPU
    staleness: int = 0  # Iterations by which gradients are late


@dataclass(frozen=True, kw_only=True)
class RefusedPolicy:
    """Policies that do not apply to a job, with the reason."""

    name: str  # The policies
    reason: str  # Why not, in a sentence


@dataclass(frozen=True, kw_only=True)
class ComparedPolicies:
    """Table of policies with lower bounds."""

    rows: tuple[ComparedPolicy, ...]  # Those that suit, family by family, the fastest first
    refused: tuple[RefusedPolicy, ...]  # The others
    baselines: dict[str, ComparedPolicy]  # The row of the baseline of each family

    def compute_seconds(self, family: str) -> float:
        """Lower bound of a family: least compute time of the busiest device."""
        return min(each.compute_seconds for each in self.rows if each.family == family)

    def lower_bound_seconds(self, family: str) -> float:
        """Lower bound of a family without stale gradients: the least of the rows' bounds."""
        return min(
            each.lower_bound_seconds for each in self.rows if each.family == family and not each.staleness
        )

    def record(self) -> dict[str, Any]:
        """The table as JSON values."""
        rows = [
            {
                "policy": each.name,
                "family": each.family,
                "iteration_seconds": each.seconds,
                "gain": gain_of(each, self.baselines[each.family]),
                "lower_bound_seconds": each.lower_bound_seconds,
                "exposed_seconds": each.exposed_seconds,
                "messages": each.messages,
                "memory_bytes": each.memory_bytes,
                "fits": each.fits,
                "staleness": each.staleness,
            }
            for each in self.rows
        ]
        computes = {name: self.compute_seconds(name) for name in self.baselines}
        least = {name: self.lower_bound_seconds(name) for name in self.baselines}
        return {
            "compute_seconds_by_family": computes,
            "compute_seconds": computes,
            "lower_bound_seconds_by_family": least,
            "lower_bound_seconds": least,
            "baseline": {name: each.name for name, each in self.baselines.items()},
            "rows": rows,
            "refused": [{"policy": each.name, "reason": each.reason} for each in self.refused],
        }


def gain_of(row: ComparedPolicy, baseline: ComparedPolicy) -> float:
    """Relative gain of a row over the baseline."""
    return 1 - row.seconds / baseline.seconds if baseline.seconds else 0.0


def compare_policies(
    job: TrainingJob,  # The job; how it runs is for the policies to say
    # Policies, joined by `+` where they are composed; `all`: every policy alone, and the best composition of
    # an order, a policy of gradients and policies inside layers, of the two best of each that gain
    names: Sequence[str] = ("all",),
    *,
    executor: Executor | None = None,
    processes: int | None = None,  # How many to start; None: one for each core
) -> ComparedPolicies:
    """Simulate a job under policies, ordered by iteration time."""
    every = "all" in names
    asked = [*POLICIES, *names] if every else names
    alone = list(dict.fromkeys(name for name in asked if name not in (BASELINE, "all")))
    for name in alone:
        named_policies(name)
    alone.sort(key=lambda name: not _takes_long(name))  # what takes long begins first
    tasks = [(job, name) for name in (*alone, BASELINE)]
    with chosen_executor(executor, processes=processes, units=len(tasks), large=len(tasks) > 8) as where:
        found = list(run(_outcome, tasks, where))
        rows = [each for each in found if isinstance(each, ComparedPolicy)]
        refused = [each for each in found if isinstance(each, RefusedPolicy)]
        baseline = next((each for each in rows if each.name == BASELINE), None)
        if baseline is None:
            raise InputError(next(each.reason for each in refused if each.name == BASELINE))
        if every:
            together = [(job, name) for name in _together(rows, baseline) if name not in asked]
            composed = [each for each in run(_outcome, together, where) if isinstance(each, ComparedPolicy)]
            rows += sorted(composed, key=lambda each: (not each.fits, fastest_first(each)))[:1]
    return ComparedPolicies(
        rows=tuple(sorted(rows, key=fastest_first)),
        refused=tuple(sorted(refused, key=lambda each: [*POLICIES, each.name].index(each.name))),
        baselines={baseline.family: baseline},
    )


def _outcome(task: tuple[TrainingJob, str]) -> ComparedPolicy | RefusedPolicy:
    """Row of the table, or the reason why there is none."""
    job, name = task
    try:
        composition = composition_of(name, ranks=job.layout.tensor)
        for each in composition.policies if job.layout.pipeline == 1 and not composition.staleness else ():
            if isinstance(each, Pipelined):
                raise needs_pipeline(each)  # it would be the baseline once more
        found = compose(job, composition)
    except InputError as error:
        return RefusedPolicy(name=name, reason=str(error))
    return ComparedPolicy(
        name=name,
        seconds=found.seconds,
        lower_bound_seconds=found.lower_bound_seconds,
        compute_seconds=found.compute_seconds,
        exposed_seconds=found.exposed_seconds,
        messages=found.messages,
        memory_bytes=found.memory_bytes,
        fits=found.memory_bytes <= job.cluster.device.memory_bytes,
    )


def fastest_first(row: ComparedPolicy) -> tuple[float, int, str]:
    """Rows by time, then by number of policies."""
    return row.seconds, 0 if row.name == BASELINE else 1 + row.name.count("+"), row.name


def _takes_long(name: str) -> bool:
    return any(issubclass(POLICIES[each], WholePolicy) for each in name.split("+") if each in POLICIES)


def _together(rows: Sequence[ComparedPolicy], baseline: ComparedPolicy) -> Iterator[str]:
    """Compositions of the best policy of each kind, where they are faster than the baseline."""
    faster = [
        each
        for each in sorted(rows, key=fastest_first)
        if each.seconds < baseline.seconds * (1 - _SAME)
        and each.fits >= baseline.fits
        and "+" not in each.name
        and not _takes_long(each.name)
    ]
    choices: list[list[str | None]] = []
    for kind in _KINDS:
        deciding = [
            each.name for each in faster if each.name != BASELINE and kind in POLICIES[each.name].decides
        ]
        alone = [name for name in deciding if len(POLICIES[name].decides & {*_KINDS}) == 1]
        others = [
            name for name in deciding if name not in alone
        ]  # they decide more, so that less can be beside
        choices.append([*alone[:_TOGETHER], *others[:1], None])
    seen: set[frozenset[str]] = set()
    for chosen in itertools.product(*choices):
        names = list(dict.fromkeys(name for name in chosen if name is not None))
        decided = [question for name in names for question in POLICIES[name].decides]
        if len(names) > 1 and len(decided) == len(set(decided)) and frozenset(names) not in seen:
            seen.add(frozenset(names))
            yield "+".join(names)


_BASELINES = {"gradients": "serial", "order": "gpipe"}
"""A family, and its baseline: pipelines have several devices and micro-batches, so theirs is another."""


def compare_on_layers(
    workload: LayerWorkload,
    names: Sequence[str] = ("all",),  # Policies; `all`: every one
    *,
    executor: Executor | None = None,
    processes: int | None = None,  # How many to start; None: one for each core where there is much to do
) -> ComparedPolicies:
    """Simulate a workload of layers under policies with their defaults.

    Examples:
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> found = compare_on_layers(three, ["wfbp", "priority"], processes=1)
        >>> [(row.name, row.seconds) for row in found.rows], found.compute_seconds("gradients")
        ([('priority', 16.0), ('wfbp', 17.0), ('serial', 21.0)], 9)
    """
    asked = list(dict.fromkeys([*POLICIES, *names] if "all" in names else names))
    asked = [name for name in asked if name != "all"]
    for name in asked:
        named_policies(name)
    families = {_family(name) for name in asked if _on_layers(name)} or {"gradients"}
    needed = [each for family, each in _BASELINES.items() if family in families]
    tasks = [(workload, name) for name in dict.fromkeys((*asked, *needed)) if name != BASELINE]
    with chosen_executor(
        executor, processes=processes, units=len(tasks), large=workload.layers > 64
    ) as where:
        found = list(run(_layered_outcome, tasks, where))
    rows = [each for each in found if isinstance(each, ComparedPolicy)]
    refused = [each for each in found if isinstance(each, RefusedPolicy)]
    by_name = {each.name: each for each in rows}
    baselines = {family: by_name[each] for family, each in _BASELINES.items() if each in by_name}
    if not baselines:
        raise InputError(next(each.reason for each in refused if each.name in needed))
    return ComparedPolicies(
        rows=tuple(
            row for family in baselines for row in sorted(rows, key=fastest_first) if row.family == family
        ),
        refused=tuple(sorted(refused, key=lambda each: [*POLICIES, each.name].index(each.name))),
        baselines=baselines,
    )


def _on_layers(name: str) -> bool:
    return name in POLICIES and issubclass(POLICIES[name], Policy)


def _family(name: str) -> str:
    return "gradients" if issubclass(POLICIES[name], DataParallelPolicy) else "order"


def _layered_outcome(task: tuple[LayerWorkload, str]) -> ComparedPolicy | RefusedPolicy:
    """Row of the table, or the reason why there is none."""
    workload, name = task
    if not _on_layers(name):
        single = "+" not in name
        wanted = "a policy of gradients or of pipelines" if single else "one policy at a time"
        reason = f"expected {wanted} on a workload of layers, found {name}: compare it on a job."
        return RefusedPolicy(name=name, reason=reason)
    policy = policy_named(name).of()
    try:
        if isinstance(policy, DataParallelPolicy):
            least = policy.least_messages(workload)
            if least > MOST_MESSAGES:
                raise InputError(
                    f"expected at most {MOST_MESSAGES:,} messages of an iteration, found at least {least:,}: "
                    "cut into larger parts."
                )
        found = predict(workload, name)
    except InputError as error:
        return RefusedPolicy(name=name, reason=str(error))
    costs = policy.costs(workload) if isinstance(policy, DataParallelPolicy) else None
    return ComparedPolicy(
        name=name,
        family=_family(name),
        seconds=found.iteration_seconds,
        lower_bound_seconds=found.lower_bound_seconds,
        compute_seconds=found.compute_seconds,
        exposed_seconds=found.iteration_seconds - found.compute_seconds if costs else None,
        messages=costs.messages if costs else None,
        memory_bytes=costs.extra_memory_bytes if costs else None,
        staleness=found.staleness,
    )


_COMPUTES, _WAITS, _BASELINE = "#1f77b4", "#ff7f0e", "#b9c0c8"
_FAR = 1.5
"""Bars end at so many times the baseline; those that go on are told by their numbers."""
_FAMILIES = {"job": "", "gradients": "policies of gradients", "order": "orders of pipelines"}


def plot_policies(found: ComparedPolicies, path: str | os.PathLike[str], *, title: str) -> None:
    """Draw policies as horizontal bars, the fastest at the top.

    A bar is the computation of the busiest device and the rest of the iteration. A black line is what none of them
    beats, a tick what no order of the same passes and messages does.

    Args:
        path: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.
    """
    target = Path(path)
    check_picture(target)
    save_picture(_figure(found, title), target, bbox_inches="tight")


def _figure(found: ComparedPolicies, title: str) -> Figure:
    from matplotlib.figure import Figure

    counts = [sum(row.family == family for row in found.rows) for family in found.baselines]
    figure = Figure(figsize=(10, 1.8 + 0.3 * sum(counts) + 0.8 * (len(counts) - 1)), layout="constrained")
    every = figure.subplots(len(counts), 1, squeeze=False, gridspec_kw={"height_ratios": counts})[:, 0]
    for family, axes in zip(found.baselines, every, strict=True):
        _bars(found, family, axes)
    every[-1].set_xlabel("time of an iteration")
    figure.suptitle(title)
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _bars(found: ComparedPolicies, family: str, axes: Axes) -> None:
    """Bars of a family."""
    rows = [row for row in found.rows if row.family == family]
    baseline = found.baselines[family]
    places = range(len(rows))
    end = 1000 * min(max(row.seconds for row in rows), _FAR * baseline.seconds)
    computes = [1000 * min(row.compute_seconds, row.seconds) for row in rows]
    waits = [max(0.0, min(end, 1000 * row.seconds) - own) for row, own in zip(rows, computes, strict=True)]
    shades = [_BASELINE if row is baseline else _WAITS for row in rows]
    axes.barh(places, computes, color=_COMPUTES, label="computation of the busiest device")
    axes.barh(places, waits, left=computes, color=shades)
    axes.barh([0], [0], color=_WAITS, label="the rest (grey: of the baseline)")
    least = 1000 * found.compute_seconds(family)
    axes.axvline(least, color="black", linewidth=1.6, label="the least computation, which no row beats")
    bounds = [1000 * row.lower_bound_seconds for row in rows]
    seen = [(bound, place) for bound, place in zip(bounds, places, strict=True) if bound <= end]
    axes.plot(
        [bound for bound, _ in seen],
        [place for _, place in seen],
        linestyle="",
        marker="|",
        markersize=11,
        markeredgewidth=2,
        color="#d62728",
        label="its own lower bound",
    )
    for place, row in zip(places, rows, strict=True):
        words = ("... " if 1000 * row.seconds > end else "") + seconds_text(row.seconds)
        if row is not baseline:
            words += f", {round(-100 * gain_of(row, baseline), 1) + 0.0:+.1f}%"
        right = max(row.seconds, row.lower_bound_seconds)
        axes.text(
            min(end, 1000 * right) + 0.005 * end, place, f" {words}", va="center", fontsize=8, clip_on=False
        )
    axes.set_yticks(places, [row.name + (" (late)" if row.staleness else "") for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end * 1.16)
    axes.set_title(_FAMILIES[family], fontsize=10, loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(value / 1000) if value else "0")
    axes.grid(visible=True, axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
