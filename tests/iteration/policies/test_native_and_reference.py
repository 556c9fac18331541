"""On random workloads no policy beats its bound, and the native simulator runs tasks as its readable reference does."""

from __future__ import annotations

import random

import pytest

from coppice.iteration.policies.catalogue import policies_of, policy_named
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.step.workloads import steady_iteration
from coppice.iteration.tasks import run_tasks
from iteration.policies.workloads import random_workload
from reference import tasks as reference

NAMES = list(policies_of(DataParallelPolicy))


def check(number: int) -> None:
    draw = random.Random(number)
    work = random_workload(draw)
    policy = policy_named(NAMES[number % len(NAMES)]).of()
    graph = policy.iterations(work, 2).graph
    times = run_tasks(graph)
    start, finish = reference.run(graph)
    assert times.start.tolist() == pytest.approx(start, abs=1e-9), number
    assert times.finish.tolist() == pytest.approx(finish, abs=1e-9), number
    found = steady_iteration(lambda count: policy.iterations(work, count)).seconds
    assert found >= policy.lower_bound_seconds(work) - 1e-8 * found, number


def test_random_workloads() -> None:
    for number in range(60):
        check(number)


@pytest.mark.slow
def test_two_thousand_random_workloads() -> None:
    for number in range(2000):
        check(number)
