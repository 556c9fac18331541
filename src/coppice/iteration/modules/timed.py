"""Time a traced module on a cluster: its operations, the step as a task graph, and the workload of its layers.

Theory. A matrix product, convolution or attention takes its FLOPs at the share of the peak that large ones reach on
such a GPU; every operation takes at least its bytes at the share of the rate of memory that passes over it reach (the
roofline: Williams, Waterman, Patterson, CACM 2009), as eager PyTorch runs it: one by one, unfused. Elements of 4 bytes
are multiplied at half the 16-bit rate, as TF32 by the data sheets. Collectives are rings inside a box or across boxes,
whose groups share its NICs (:meth:`coppice.iteration.machine.Cluster.ring_seconds`).

Operations run one after the other on the compute stream; a collective runs on the stream of its group once what it
reads is there; an operation waits for the collectives whose results it reads. The host takes no time. FSDP2 gathers
parameters on streams of its own: in a forward pass once the parameters gathered two before are copied out, in a
backward pass those gathered one before (``FSDPParamGroup.wait_for_unshard`` of PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.machine import Cluster
from coppice.iteration.modules.tracing import ModuleOperation, ModuleTrace
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder, TaskTimes, lower_bound_seconds, run_tasks
from coppice.iteration.totals import group_text
from coppice.iteration.workload.times import roofline_seconds

_ROUNDS = {"all_reduce": 2, "barrier": 2}
_BETWEEN_TWO = ("send", "recv")
_GATHERS, _COPIES_OUT = "fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy"


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedModule:
    """A module's step on a cluster."""

    trace: ModuleTrace  # The step
    cluster: Cluster  # The GPUs and their network
    seconds_alone: Sequence[float]  # Seconds of each operation by itself
    times: TaskTimes  # When each runs
    lower_bound_seconds: float  # What no order of the same operations on these streams can beat

    @property
    def seconds(self) -> float:
        """Time of forward and backward pass."""
        return self.times.seconds

    @property
    def compute_seconds(self) -> float:
        """Compute time of the GPU."""
        return sum(
            each
            for each, operation in zip(self.seconds_alone, self.trace.operations, strict=True)
            if not operation.collective
        )

    @property
    def communication_seconds(self) -> float:
        """Total time of all collectives, without overlap."""
        return sum(self.seconds_alone) - self.compute_seconds

    def workload(self) -> LayerWorkload:
        """Layers as a workload for gradient policies.

        Times of a layer are those of its operations and of the collectives of groups that are not of replicas; a
        message is an all-reduce of all replicas, affine in its size.
        """
        trace = self.trace
        replicas = trace.mesh.get("dp", 1)
        if replicas < 2 or not trace.layers:
            raise InputError(
                f"expected replicas (dp) whose gradients are summed, found {trace.mesh}: trace with `parallel` dp=16."
            )
        stride = _stride(trace)
        summed = {
            number
            for number, each in enumerate(trace.operations)
            if each.collective and len(each.ranks) == replicas and _step(each.ranks) == stride
        }
        seconds = {number: each for number, each in enumerate(self.seconds_alone) if number not in summed}
        forward, backward = trace.layer_sums(seconds)
        size = float(max(1, sum(layer.gradient_bytes for layer in trace.layers)))
        fixed = self.cluster.ring_seconds(0.0, replicas, stride)
        whole = self.cluster.ring_seconds(size, replicas, stride)
        return LayerWorkload(
            forward=tuple(forward),
            backward=tuple(backward),
            bytes=tuple(float(layer.gradient_bytes) for layer in trace.layers),
            bytes_per_second=size / (whole - fixed),
            message_seconds=fixed,
            workers=replicas,
        )


def time_module(trace: ModuleTrace, cluster: Cluster) -> TimedModule:
    """Time a traced step on a cluster, and simulate it."""
    alone = [_seconds(each, cluster) for each in trace.operations]
    graph = _graph(trace, cluster, alone, in_turn=True)
    return TimedModule(
        trace=trace,
        cluster=cluster,
        seconds_alone=alone,
        times=run_tasks(graph),
        lower_bound_seconds=lower_bound_seconds(_graph(trace, cluster, alone, in_turn=False)),
    )


def _seconds(each: ModuleOperation, cluster: Cluster) -> float:
    """Time of an operation by itself."""
    if each.collective:
        rounds = _ROUNDS.get(each.collective, 1)
        if each.collective in _BETWEEN_TWO:  # what a ring of two halves
            return cluster.ring_seconds(2 * each.size_bytes, 2, _step(each.ranks), rounds=1)
        return cluster.ring_seconds(each.size_bytes, len(each.ranks), _step(each.ranks), rounds=rounds)
    return roofline_seconds(each.flops, each.moved_bytes, each.element_bytes, cluster)


def _graph(trace: ModuleTrace, cluster: Cluster, seconds: Sequence[float], *, in_turn: bool) -> TaskGraph:
    """Task graph of the step, a task for each operation.

    Args:
        in_turn: The compute stream runs its operations in the order in which they were issued.
    """
    graph = TaskGraphBuilder()
    compute = graph.stream("compute")
    copied: dict[bool, list[int]] = {False: [], True: []}
    computed: list[int] = []  # The last operation of the compute stream, which runs them in turn
    for number, each in enumerate(trace.operations):
        after, stream, loads = list(each.after), compute, _loads(each, cluster)
        kind = "optimizer" if each.update else "backward" if each.backward else "forward"
        if each.collective:
            kind, stream = each.collective, graph.stream(f"ranks {group_text(each.ranks)}")
        elif each.name == _GATHERS:
            stream = graph.stream("copies of parameters")
            before = copied[each.backward][-1:] if each.backward else copied[False][-2:-1]
            after += before
        elif each.name == _COPIES_OUT:
            copied[each.backward].append(number)
        elif each.waits:
            kind = "wait"
        if in_turn and stream == compute:
            after, computed = [*after, *computed], [number]
        name = each.name if each.layer < 0 else f"{each.name} of {trace.layers[each.layer].name}"
        graph.add(name, kind, stream, seconds[number], after=after, loads=loads)
    return graph.build()


def _loads(each: ModuleOperation, cluster: Cluster) -> Mapping[str, float]:
    """Links that a collective saturates while it runs."""
    if not each.collective:
        return {}
    crosses = max(each.ranks) // cluster.device.box != min(each.ranks) // cluster.device.box
    return {"NICs" if crosses else "links of the box": 1.0}


def _step(ranks: Sequence[int]) -> int:
    """Stride between the ranks of a group."""
    return min((b - a for a, b in pairwise(ranks)), default=1)


def _stride(trace: ModuleTrace) -> int:
    """Stride of data-parallel ranks: the product of the inner degrees."""
    names = list(trace.mesh)
    stride = 1
    for name in names[names.index("dp") + 1 :]:
        stride *= trace.mesh[name]
    return stride
