"""Process groups for message streams; each stream runs its messages in launch order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

# torch 2.13 has new names and warns of the old ones.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_IN_ORDER = "coppice_in_order"
"""gloo with one thread a group. Its own has two, which share the network among two messages at a time, in no order."""


def used_here(tensors: Iterable[torch.Tensor]) -> None:
    """Record tensors of another stream as used on the current one (``record_stream``)."""
    for each in tensors:
        if each.is_cuda:
            each.record_stream(torch.cuda.current_stream(each.device))


class Streams:
    """Process groups by stream, created on demand, equally on all ranks.

    Args:
        group: The ranks that train together; None: all.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._parent = group
        self._groups: dict[str, dist.ProcessGroup] = {}
        self.ranks = (
            dist.get_process_group_ranks(group) if group is not None else list(range(dist.get_world_size()))
        )
        self.rank = dist.get_rank(group)

    @property
    def over_gloo(self) -> bool:
        """Whether the groups use gloo."""
        return bool(dist.get_backend(self._parent) == "gloo")

    def group(self, stream: str) -> dist.ProcessGroup:
        """Process group of a stream."""
        if stream not in self._groups:
            self._groups[stream] = dist.new_group(
                self.ranks,
                backend=_in_order() if self.over_gloo else dist.get_backend(self._parent),
                use_local_synchronization=len(self.ranks) < dist.get_world_size(),
            )
        return self._groups[stream]


def _in_order() -> str:
    """Backend name, registered."""
    if not hasattr(dist.Backend, _IN_ORDER.upper()):
        dist.Backend.register_backend(
            _IN_ORDER, _gloo_of_one_thread, extended_api=True, devices=["cpu", "cuda"]
        )
    return _IN_ORDER


def _gloo_of_one_thread(settings: Any, _options: Any) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001 (the only way to say the number of threads)
    interfaces = [each for each in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if each]
    options._devices = [gloo.create_device(interface=each) for each in interfaces]  # noqa: SLF001
    options._devices = options._devices or [gloo.create_default_device()]  # noqa: SLF001
    options._threads = 1  # noqa: SLF001
    options._timeout = settings.timeout  # noqa: SLF001
    return gloo(settings.store, settings.group_rank, settings.group_size, options)


def reduce_scatter(
    shard: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup, back: dist.ProcessGroup | None
) -> Any:
    """Start a reduce-scatter; over gloo it is complete on return, with sums in rank order.

    Args:
        shard: The rank's part of the sum.
        back: The same ranks once more, for gloo.
    """
    if back is None:
        return _reduce_scatter_single(shard, whole, group=group, async_op=True)
    received = torch.empty_like(whole).view(-1, len(shard))
    _exchange(list(whole.view(-1, len(shard))), received, group, back)
    torch.sum(received, dim=0, out=shard)
    return None


def all_gather(
    whole: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup, back: dist.ProcessGroup | None
) -> Any:
    """Start an all-gather; over gloo it is complete on return.

    Args:
        back: The same ranks once more, for gloo.
    """
    if back is None:
        return _all_gather_single(whole, shard, group=group, async_op=True)
    received = whole.view(-1, len(shard))
    _exchange([shard] * len(received), received, group, back)
    return None


def _exchange(
    parts: Sequence[torch.Tensor], received: torch.Tensor, group: dist.ProcessGroup, back: dist.ProcessGroup
) -> None:
    """Send each other rank its part.

    gloo's own reduce-scatter sends as much as an all-reduce. What lower ranks send goes over one group and what higher
    ranks send over another: gloo announces a receiver's buffer behind what the receiver itself is sending, so on a
    single group both directions go one after the other as soon as a rank is late.
    """
    own = dist.get_rank(group)
    works: list[Any] = []
    for peer, rank in enumerate(dist.get_process_group_ranks(group)):
        if peer != own:
            works.append(dist.irecv(received[peer], rank, group=group if peer < own else back))
            works.append(dist.isend(parts[peer], rank, group=group if own < peer else back))
    received[own].copy_(parts[own])
    for work in works:
        work.wait()


class _SentToServer:
    """Tensor sent to a server, which adds those of all ranks in order when first waited for."""

    def __init__(self, tensor: torch.Tensor, received: Sequence[torch.Tensor], works: Sequence[Any]) -> None:
        self._tensor, self._received, self._works = tensor, received, works

    def wait(self) -> None:
        """Wait for the tensor, and on the server for the sum."""
        for work in self._works:
            work.wait()
        for each in self._received:
            self._tensor.add_(each)
        self._received, self._works = (), ()


def push(tensor: torch.Tensor, server: int, group: dist.ProcessGroup, back: dist.ProcessGroup | None) -> Any:
    """Start a reduce to one rank; over gloo each other rank sends to it once.

    Args:
        tensor: What is summed, in place on the server.
        server: Rank that gets the sum, of all ranks.
        back: The same ranks once more, for gloo; see :func:`_exchange`.
    """
    if back is None:
        return dist.reduce(tensor, dst=server, group=group, async_op=True)
    own = dist.get_rank()
    if own != server:
        return _SentToServer(tensor, (), [dist.isend(tensor, server, group=group if own < server else back)])
    peers = [rank for rank in dist.get_process_group_ranks(group) if rank != server]
    received = [torch.empty_like(tensor) for _ in peers]
    works = [
        dist.irecv(each, rank, group=group if rank < server else back)
        for each, rank in zip(received, peers, strict=True)
    ]
    return _SentToServer(tensor, received, works)


def pull(tensor: torch.Tensor, server: int, group: dist.ProcessGroup, back: dist.ProcessGroup | None) -> Any:
    """Start a broadcast from one rank; over gloo one send to each.

    Args:
        tensor: What is sent, or where it comes.
        server: Rank that has it, of all ranks.
        back: The same ranks once more, for gloo; see :func:`_exchange`.
    """
    if back is None:
        return dist.broadcast(tensor, src=server, group=group, async_op=True)
    own = dist.get_rank()
    if own != server:
        return _SentToServer(tensor, (), [dist.irecv(tensor, server, group=group if server < own else back)])
    peers = [rank for rank in dist.get_process_group_ranks(group) if rank != server]
    return _SentToServer(
        tensor, (), [dist.isend(tensor, rank, group=group if server < rank else back) for rank in peers]
    )
