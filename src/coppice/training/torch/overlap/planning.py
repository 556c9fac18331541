"""Plan a recorded model by a policy: a launch order equal on all ranks.

Ranks that pick by themselves what is ready and most urgent pick differently, and collectives that do not meet hang. So
the order is made beforehand: the policy's messages are simulated on the recorded times of rank 0, and each stream
launches them in the order in which they start there. A message still waits for its gradients, for what it comes
after, and for credit; only the choice among several is made. The simulation respected what messages wait for, so a
rank that launches in its order cannot wait for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.messages import Message
from coppice.iteration.running import run_tasks
from coppice.iteration.steady import steady_iteration

_ITERATIONS = 4  # simulated; what is launched in the last but one is the order


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Messages of an iteration with their launch order."""

    messages: tuple[Message, ...]  # The messages; a layer is a tensor, by its number in `tensors`
    tensors: tuple[int, ...]  # Place of each numbered tensor in the list of all trained ones
    # Numbers of the messages of each stream, in the order in which they are launched
    order: Mapping[str, tuple[int, ...]]
    scope: UpdateScope  # What must be summed before a tensor is updated
    predicted_seconds: float = 0.0  # Time of an iteration by the simulation; 0 where nothing was simulated


def data_parallel_policy(name: str, settings: Mapping[str, object]) -> DataParallelPolicy:
    """Look up a data-parallel policy with its options."""
    found = policy_named(name).of(**settings)
    if not isinstance(found, DataParallelPolicy):
        raise InputError(
            f"expected a policy that decides about gradients alone, found {name!r}: take ddp, bytescheduler, dear, p3, "
            "pace, priority, ooo, tictac, gradientflow, poseidon, jia, mg-wfbp, wfbp or serial."
        )
    return found


def recorded_workload(
    tensors: Sequence[torch.Tensor],
    *,
    forward: Sequence[float],
    backward: Sequence[float],
    network: tuple[float, float],  # Bytes per second and seconds per message
    workers: int,
    # Rows of the factors of each layer that may go by them. A workload has one number of rows: that of most
    # elements; layers with another are no matrices in it.
    rows: Sequence[int | None],
) -> LayerWorkload:
    """Workload of a recorded model, with tensors as layers."""
    elements: Counter[int] = Counter()
    kind = tensors[0].element_size()
    for tensor, own in zip(tensors, rows, strict=True):
        if own is not None and tensor.element_size() == kind:
            elements[own] += tensor.numel()
    samples = max(elements, key=lambda each: (elements[each], each)) if elements else 1
    matrices = tuple(
        (tensor.shape[0], tensor.shape[1]) if own == samples and tensor.element_size() == kind else None
        for tensor, own in zip(tensors, rows, strict=True)
    )
    rate, message = network
    return LayerWorkload(
        forward=tuple(forward),
        backward=tuple(backward),
        bytes=tuple(float(each.numel() * each.element_size()) for each in tensors),
        bytes_per_second=rate,
        message_seconds=message,
        workers=workers,
        matrices=matrices if elements else (),
        samples=samples,
        element_bytes=float(kind),
        dtypes=tuple(str(each.dtype) for each in tensors),
    )


def launch_plan(policy: DataParallelPolicy, workload: LayerWorkload, tensors: Sequence[int]) -> LaunchPlan:
    """Messages of a policy in the launch order of a simulated steady iteration.

    Args:
        tensors: Place of each of them among all trained ones.

    Examples:
        >>> from coppice.iteration.policies.data_parallel.priority import Priority
        >>> work = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> launch_plan(Priority.of(partition_bytes=4), work, (0, 1, 2)).order
        {'network': (0, 3, 2, 1)}
    """
    messages = tuple(policy.messages(workload))
    made = policy.iterations(workload, _ITERATIONS)
    times = run_tasks(made.graph)
    tasks = list(made.last[_ITERATIONS - 2])[len(made.last[_ITERATIONS - 2]) - len(messages) :]
    start = [float(times.start[task]) for task in tasks]
    order: dict[str, list[int]] = {}
    for number in sorted(range(len(messages)), key=lambda each: (start[each], messages[each].priority, each)):
        order.setdefault(messages[number].stream, []).append(number)
    return LaunchPlan(
        messages=messages,
        tensors=tuple(tensors),
        order={stream: tuple(numbers) for stream, numbers in order.items()},
        scope=policy.update_scope,
        predicted_seconds=steady_iteration(lambda count: policy.iterations(workload, count)).seconds,
    )
