"""Hops of a ring as operations of a graph: what starts a hop, and what waits for it.

``coppice::hop_start`` sends a tensor to one rank and receives one like it from another, and returns at once;
``coppice::hop_wait`` gives what has come. The second takes what was sent as well, so that nobody uses its memory for
something else meanwhile, and its result is what the first returned, so that nothing reads that too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

from coppice.errors import CheckError

_TAG = 0x7C0C
"""Above the tags that training programs choose; the way around the ring is added."""


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """A hop that was started: its works, and what they send, which has to stay."""

    works: tuple[Any, ...]
    sent: torch.Tensor


_UNDER_WAY: dict[int, _UnderWay] = {}
"""By the address of what is received."""


def group_of(name: Any) -> dist.ProcessGroup:
    """The process group that an operation of a graph names."""
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
        raise _failed(error) from error
    _UNDER_WAY[received.data_ptr()] = _UnderWay(works, sent)
    return received


def _wait(received: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    del source
    hop = _UNDER_WAY.pop(received.data_ptr())
    try:
        for work in hop.works:  # on a device this orders its stream behind the hop
            work.wait()
    except RuntimeError as error:
        raise _failed(error) from error
    return received


def _failed(error: RuntimeError) -> CheckError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckError(
        f"expected every rank of the ring to pass its shard on, found one that does not answer ({reason}): start the "
        "training again from its last checkpoint."
    )


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
