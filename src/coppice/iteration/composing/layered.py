"""Policies on a workload of layers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from coppice.comparison.pool import chosen_executor, run
from coppice.errors import InputError
from coppice.iteration.composing.compared import (
    BASELINE,
    ComparedPolicies,
    ComparedPolicy,
    RefusedPolicy,
    fastest_first,
)
from coppice.iteration.composing.composed import MOST_MESSAGES
from coppice.iteration.composing.composition import ALL_POLICIES, named_policies
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.predicted import predict

_BASELINES = {"gradients": "serial", "order": "gpipe"}
"""A family, and its baseline: pipelines have several devices and micro-batches, so theirs is another."""


def compare_on_layers(
    workload: LayerWorkload,
    names: Sequence[str] = ("all",),  # Policies; `all`: every one
    *,
    executor: Executor | None = None,
    processes: int | None = None,  # How many to start; None: one for each core where there is much to do
) -> ComparedPolicies:
    """Simulate iterations of a workload of layers under policies, each with its defaults.

    Examples:
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> found = compare_on_layers(three, ["wfbp", "priority"], processes=1)
        >>> [(row.name, row.seconds) for row in found.rows], found.compute_seconds("gradients")
        ([('priority', 16.0), ('wfbp', 17.0), ('serial', 21.0)], 9)
    """
    asked = list(dict.fromkeys([*ALL_POLICIES, *names] if "all" in names else names))
    asked = [name for name in asked if name != "all"]
    for name in asked:
        named_policies(name)
    families = {_family(name) for name in asked if name in POLICIES} or {"gradients"}
    needed = [each for family, each in _BASELINES.items() if family in families]
    tasks = [(workload, name) for name in dict.fromkeys((*asked, *needed)) if name != BASELINE]
    with chosen_executor(
        executor, processes=processes, units=len(tasks), large=workload.layers > 64
    ) as where:
        found = list(run(_outcome, tasks, where))
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
        refused=tuple(sorted(refused, key=lambda each: [*ALL_POLICIES, each.name].index(each.name))),
        baselines=baselines,
    )


def _family(name: str) -> str:
    return "gradients" if issubclass(POLICIES[name], DataParallelPolicy) else "order"


def _outcome(task: tuple[LayerWorkload, str]) -> ComparedPolicy | RefusedPolicy:
    """A row, or why there is none."""
    workload, name = task
    if name not in POLICIES:
        single = "+" not in name
        wanted = "a policy of gradients or of pipelines" if single else "one policy at a time"
        reason = f"expected {wanted} on a workload of layers, found {name}: compare it on a job."
        return RefusedPolicy(name=name, reason=reason)
    policy = POLICIES[name].of()
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
