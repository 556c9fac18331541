"""Ranks of an AutoLRS training: average losses, let rank 0 decide, and broadcast its decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from coppice.decoding import decodable
from coppice.errors import CheckError, CoppiceError
from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import Action, SearchDecision, State

_FAILED, _GOES_ON, _ENDED = 0, 1, 2


class World:
    """A process group, or a single process.

    Args:
        group: The group whose ranks train together; None is the default group, if there is one.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size(group) if joined else 1
        self.rank = dist.get_rank(group) if joined else 0
        self._group = group
        self._root = dist.get_global_rank(group, 0) if joined and group is not None else 0
        self._device = torch.device("cpu")
        if joined and not any(name in dist.get_backend_config(group) for name in ("gloo", "mpi")):
            self._device = torch.device("cuda", torch.cuda.current_device())

    @property
    def decides(self) -> bool:
        """Whether this rank decides, logs and shows progress."""
        return self.rank == 0

    def mean(self, values: Sequence[float]) -> list[float]:
        """Element-wise mean over the ranks; not finite where one rank's is not."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, group=self._group)
        means: list[float] = (tensor / self.size).tolist()
        return means

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.mean([0.0])

    def observe(
        self, controller: Controller, losses: Sequence[float], validation: float | None
    ) -> SearchDecision:
        """Let rank 0 observe averaged losses; every rank returns its decision and state."""
        if self.size == 1:
            return controller.observe(losses, validation)
        decision: SearchDecision | None = None
        payload, code = b"", _GOES_ON
        if self.decides:
            try:
                decision = controller.observe(losses, validation)
            except CoppiceError as error:
                payload, code = str(error).encode(), _FAILED
            else:
                if decision.ended:
                    payload, code = msgspec.msgpack.encode((decision, controller.state)), _ENDED
        else:
            controller.follow(losses, validation)
        code = self._broadcast_number(code)
        if code != _GOES_ON:
            payload = self._broadcast_bytes(payload)
        if code == _FAILED:
            raise CheckError(payload.decode())
        if code == _ENDED:
            decision, controller.state = msgspec.msgpack.decode(
                payload, type=decodable(tuple[SearchDecision, State])
            )
        return decision if decision is not None else SearchDecision(action=Action.CONTINUE, ended=False)

    def agree(self, make: Callable[[], Any]) -> Any:
        """Broadcast a plain value of rank 0."""
        if self.size == 1:
            return make()
        payload = msgspec.msgpack.encode(make()) if self.decides else b""
        return msgspec.msgpack.decode(self._broadcast_bytes(payload))

    def _broadcast_number(self, number: int) -> int:
        tensor = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.broadcast(tensor, src=self._root, group=self._group)
        return int(tensor.item())

    def _broadcast_bytes(self, payload: bytes) -> bytes:
        size = self._broadcast_number(len(payload))
        tensor = torch.zeros(size, dtype=torch.uint8, device=self._device)
        if self.decides:
            tensor.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(tensor, src=self._root, group=self._group)
        received: bytes = tensor.cpu().numpy().tobytes()
        return received
