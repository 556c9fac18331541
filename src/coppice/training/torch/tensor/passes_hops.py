"""Ring hops as graph operations, and the costs of hops, products and collectives.

``coppice::hop_start`` sends a tensor to one rank and receives one like it from another, and returns at once;
``coppice::hop_wait`` gives what has come. The second takes what was sent as well, so that nobody uses its memory for
something else meanwhile, and its result is what the first returned, so that nothing reads that too early.

Costs, for the gate of the passes, are given, or measured by all ranks together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch._subclasses.fake_tensor import unset_fake_temporarily

from coppice.errors import InputError
from coppice.iteration.costs.calibrated import costs_of
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.machine import Cluster, cluster_of
from coppice.iteration.policies.tensor.coconet.costs import Machine
from coppice.iteration.policies.tensor.coconet.program import OpKind, TensorProgram
from coppice.topology.model import Topology
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.core.measure import rate_and_start, slowest_seconds

_TAG = 0x7C0C
"""Above the tags that training programs choose; the way around the ring is added."""


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """Outstanding hop: its works, and the tensors that they send."""

    works: tuple[Any, ...]
    sent: torch.Tensor


_UNDER_WAY: dict[int, _UnderWay] = {}
"""By the address of what is received."""


def group_of(name: Any) -> dist.ProcessGroup:
    """Process group named by a graph operation."""
    return name if isinstance(name, dist.ProcessGroup) else _resolve_process_group(name)


def _start(source: torch.Tensor, to: int, origin: int, group_name: str, way: int) -> torch.Tensor:
    group = group_of(group_name)
    sent = source.contiguous()
    received = torch.empty_like(sent)
    tag = _TAG + (way > 0)
    parts = [
        dist.P2POp(dist.isend, sent, group=group, tag=tag, group_peer=to),
        dist.P2POp(dist.irecv, received, group=group, tag=tag, group_peer=origin),
    ]
    try:
        works = tuple(dist.batch_isend_irecv(parts))
    except RuntimeError as error:
        raise lost_rank(error, "pass its shard on", all_ranks="every rank of the ring") from error
    _UNDER_WAY[received.data_ptr()] = _UnderWay(works, sent)
    return received


def _wait(received: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    del source
    hop = _UNDER_WAY.pop(received.data_ptr())
    try:
        for work in hop.works:  # on a device this orders its stream behind the hop
            work.wait()
    except RuntimeError as error:
        raise lost_rank(error, "pass its shard on", all_ranks="every rank of the ring") from error
    return received


_LIBRARY: Any = torch.library.Library("coppice", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("hop_start(Tensor source, int to, int origin, str group_name, int way) -> Tensor")
_LIBRARY.define("hop_wait(Tensor(a) received, Tensor source) -> Tensor(a)")
_LIBRARY.impl("hop_start", _start, "CompositeExplicitAutograd")
_LIBRARY.impl("hop_wait", _wait, "CompositeExplicitAutograd")


def _start_shape(source: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(source, memory_format=torch.contiguous_format)


def _wait_shape(received: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    del source
    return received.view_as(received)


torch.library.register_fake("coppice::hop_start", _start_shape, lib=_LIBRARY)
torch.library.register_fake("coppice::hop_wait", _wait_shape, lib=_LIBRARY)

hop_start = torch.ops.coppice.hop_start.default
hop_wait = torch.ops.coppice.hop_wait.default


# torch 2.13 has new names and warns of the old ones.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_KINDS = ("hop", "all_gather", "reduce_scatter", "all_reduce")
_SMALL, _LARGE = 4096, 2**20
_WIDTH = 384  # of the product that is timed


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """Measured times of a group, equal on all ranks."""

    ranks: int  # Number of ranks
    flops_per_s: float  # Operations a second of products
    # For a hop and each collective: bytes a second (of a shard; of the whole tensor), seconds beside them
    network: Mapping[str, tuple[float, float]]
    memory_bytes_per_s: float = 10e9  # What elementwise work reads and writes
    launch_seconds: float = 20e-6  # What a kernel takes beside its work

    def seconds(self, kind: str, size_bytes: float) -> float:
        """Time of a hop, or of a collective, of so many bytes."""
        rate, message = self.network[kind]
        return message + size_bytes / rate

    def product(self, flops: float) -> float:
        """Time of products of so many operations."""
        return flops / self.flops_per_s


@dataclass(frozen=True, kw_only=True)
class MeasuredMachine(Machine):
    """CoCoNet's machine model with measured costs."""

    costs: MeasuredCosts  # The costs

    @classmethod
    def of(cls, costs: MeasuredCosts, **others: Any) -> MeasuredMachine:
        """Machine with these costs; ``others`` are further fields of :class:`Machine`."""
        return cls(
            costs=costs,
            flops=costs.flops_per_s,
            memory_rate=costs.memory_bytes_per_s,
            launch=costs.launch_seconds,
            **others,
        )

    def communication(self, program: TensorProgram, kernel: Sequence[str]) -> float:
        """Time of a kernel's communication: one collective after the other."""
        total = 0.0
        for name in kernel:
            kind = program.ops[name].kind.value
            if kind in self.costs.network:
                total += self.costs.seconds(kind, program.tensors[name].elements * self.element_bytes)
        sends = [name for name in kernel if program.ops[name].kind is OpKind.SEND]
        return total + super().communication(program, sends)


def modelled_costs(
    # A topology or a cluster, costs that were measured, or bytes a second and seconds per message of a hop,
    # in rings of which collectives run
    costs: Topology | Cluster | MeasuredCosts | tuple[float, float],
    *,
    ranks: int,  # Number of ranks, next to each other
    flops_per_s: float | None = None,  # Operations a second of products; costs that were measured know them
) -> MeasuredCosts:
    """Given costs.

    Examples:
        >>> costs = modelled_costs((1e6, 1e-3), ranks=4, flops_per_s=1e9)
        >>> costs.seconds("hop", 1000), round(costs.seconds("all_gather", 4000), 6)
        (0.002, 0.006)
    """
    if isinstance(costs, MeasuredCosts):
        return costs
    if flops_per_s is None or flops_per_s <= 0:
        given = "none" if flops_per_s is None else f"{flops_per_s:g}"
        raise InputError(
            f"expected `flops_per_s` above 0 with `costs`, found {given}: what products take decides as well."
        )
    if isinstance(costs, tuple):
        rate, message = costs
        if rate <= 0 or message < 0:
            raise InputError(f"expected `costs` as bytes per second above 0 and seconds, found {costs}.")
        rounds = {"hop": 1 / (ranks - 1), "all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
        network = {
            kind: (
                rate if kind == "hop" else rate * ranks / (count * (ranks - 1)),
                count * (ranks - 1) * message,
            )
            for kind, count in rounds.items()
        }
        return MeasuredCosts(ranks=ranks, flops_per_s=flops_per_s, network=network)
    if isinstance(costs, Topology):
        costs = cluster_of(costs)
    known = costs_of(costs)
    group = RankGroup(ranks, 1)
    found = {}
    for kind in _KINDS[1:]:
        small, large = (known.cost(kind, float(size), group).seconds for size in (_SMALL, _LARGE))
        found[kind] = rate_and_start(small, large, _SMALL, _LARGE)
    rate, message = found["all_gather"]
    found["hop"] = (rate * (ranks - 1) / ranks, message / (ranks - 1))
    return MeasuredCosts(ranks=ranks, flops_per_s=flops_per_s, network=found)


def measured_costs(
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    flops_per_s: float | None = None,  # Operations a second of products; None: a product is timed
    # Size of tensors for which costs have to be right; None: from 4 KiB to 1 MiB
    around_bytes: int | None = None,
) -> MeasuredCosts:
    """Costs measured by all ranks: the slowest rank's medians."""
    ranks = dist.get_world_size(group)
    network = {}
    with unset_fake_temporarily(), torch.no_grad():  # torch.compile asks while its tensors have no values
        for kind in _KINDS:
            ends = (_SMALL, _LARGE)
            if around_bytes is not None:  # a hop carries a shard
                ends = (around_bytes // (2 * ranks) if kind == "hop" else around_bytes // 2, 2 * around_bytes)
            small, large = (_seconds(kind, size, group, device) for size in ends)
            network[kind] = rate_and_start(small, large, *ends)
        if flops_per_s is None:
            flops_per_s = 2.0 * _WIDTH**3 / _seconds("product", 0, group, device)
    return MeasuredCosts(ranks=ranks, flops_per_s=flops_per_s, network=network)


def _seconds(kind: str, size_bytes: int, group: dist.ProcessGroup, device: torch.device) -> float:
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = torch.zeros(size_bytes // 4, device=device)
    shard = torch.zeros(size_bytes // 4 // ranks, device=device)
    whole = whole[: shard.numel() * ranks]
    square = torch.ones(_WIDTH, _WIDTH, device=device)

    def act() -> None:
        if kind == "hop":
            came = hop_start(whole, (rank - 1) % ranks, (rank + 1) % ranks, group.group_name, -1)
            hop_wait(came, whole)
        elif kind == "all_gather":
            all_gather_single(whole, shard, group=group)
        elif kind == "reduce_scatter":
            reduce_scatter_single(shard, whole, group=group)
        elif kind == "all_reduce":
            dist.all_reduce(whole, group=group)
        else:
            torch.mm(square, square)

    return slowest_seconds(act, group, device)
