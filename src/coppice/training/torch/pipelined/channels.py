"""Ranks of pipeline devices, and transfers of activations and their gradients between them.

What a pass takes is sent at once, and received ahead of the pass. A channel is a direction between two devices with a
process group of its own. What goes through it does so in the order of the sender's program, which the receiver knows:
it asks for several messages ahead in this order and keeps what has come until a pass takes it. So any order of passes
that does not wait for itself ends, on backends that tell messages by tags and on those that tell them by order.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.iteration.pipeline.order import StagePass, Work
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.core.measure import DeviceClock
from coppice.training.torch.pipelined.messages import LinkTokens


class PipelineLayout:
    """Pipeline devices, and replicas of the pipeline.

    Process groups are made by all ranks in one order, so that nobody waits in a circle for them.

    Args:
        group: All ranks; None: the world.
        replicas: Replicas of the pipeline.
        ranks: For each replica its ranks within the group, in the order of devices; None: in a row, replica by replica.
        timeout_s: Longest wait for another rank.

    Attributes:
        device: Device of this rank.
        replica: Its replica.

    Raises:
        InputError: If there are not as many ranks as devices in all replicas.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        replicas: int,
        ranks: Sequence[Sequence[int]] | None,
        timeout_s: float,
    ) -> None:
        every = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        if replicas < 1 or len(every) % replicas:
            raise InputError(f"expected `replicas` that divide {len(every)} ranks, found {replicas}.")
        devices = len(every) // replicas
        if ranks is None:
            ranks = [range(number * devices, (number + 1) * devices) for number in range(replicas)]
        if flat_ranks(ranks) != list(range(len(every))) or any(len(row) != devices for row in ranks):
            raise InputError(
                f"expected each of {len(every)} ranks once in {replicas} rows of {devices}, found "
                f"`ranks={[list(row) for row in ranks]}`."
            )
        # For each replica the global ranks of its devices
        self.rows = [[every[rank] for rank in row] for row in ranks]
        me = dist.get_rank()
        self.replica, self.device = next(
            (number, row.index(me)) for number, row in enumerate(self.rows) if me in row
        )
        self.timeout = timedelta(seconds=timeout_s)
        self._backend = dist.get_backend(group)
        self.everyone = self._made([flat_ranks(self.rows)])[0]
        columns = self._made([[row[device] for row in self.rows] for device in range(devices)])
        self.replica_group = columns[self.device]

    @property
    def devices(self) -> int:
        """Number of pipeline devices."""
        return len(self.rows[0])

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.rows)

    def of_devices(self, devices: Iterable[int]) -> dist.ProcessGroup | None:
        """Group of some devices over all replicas, None outside of it; collective over the ranks."""
        wanted = sorted(devices)
        return self._made([[row[device] for row in self.rows for device in wanted]]).get(0)

    def row_group(self) -> dist.ProcessGroup:
        """Group of the devices of this replica; collective over the ranks."""
        return self._made(self.rows)[self.replica]

    def hop_groups(self, hops: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dist.ProcessGroup]:
        """Group for each pair of devices that includes this rank; collective over the ranks.

        One a direction, so that nothing waits behind what goes the other way.
        """
        every = sorted(set(hops))
        found = {}
        for row in self.rows:
            made = self._made([[row[device] for device in hop] for hop in every])
            found.update({every[number]: group for number, group in made.items()})
        return found

    def _made(self, every: Sequence[Sequence[int]]) -> dict[int, dist.ProcessGroup]:
        """Create process groups; return those of this rank, by position.

        All ranks of the world make all groups. Where the training has only some of them these make groups by
        themselves, whose names have how many a rank has made: who is not in one makes one of its own instead.
        """
        me, local = dist.get_rank(), len(self.rows) * len(self.rows[0]) < dist.get_world_size()
        found = {}
        for number, ranks in enumerate(every):
            members = [me] if local and me not in ranks else sorted(ranks)
            group = dist.new_group(
                members, backend=self._backend, timeout=self.timeout, use_local_synchronization=local
            )
            if me in ranks:
                found[number] = group
        return found


def flat_ranks(rows: Sequence[Sequence[int]]) -> list[int]:
    """All ranks, in order."""
    return sorted(rank for row in rows for rank in row)


_HEADER = 64
_TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint8, torch.bool),
)


@dataclass(frozen=True)
class TensorKind:
    """Shape and type of a tensor between stages, and whether it requires a gradient."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorKind:
        """Kind of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def empty(self, device: torch.device) -> torch.Tensor:
        """Allocate a tensor of this kind."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class StageChannels:
    """Point-to-point channels of a device.

    Args:
        layout: The ranks.
        hops: Pairs of devices between which something goes, of all devices.
        device: Where tensors lie.
        ahead: Messages of a channel that are asked for before they are needed.
        tokens: What is told of sends under way.
    """

    def __init__(
        self,
        layout: PipelineLayout,
        hops: Iterable[tuple[int, int]],
        device: torch.device,
        *,
        ahead: int,
        tokens: LinkTokens,
    ) -> None:
        self._layout, self._device, self._ahead, self._tokens = layout, device, ahead, tokens
        self._groups = layout.hop_groups(hops)
        self._expected: dict[int, deque[StagePass]] = {}
        self._posted: dict[StagePass, list[tuple[torch.Tensor, Any]]] = {}
        self._waiting: dict[int, int] = {}  # posted and not taken, by the device that sends
        self.kinds: dict[tuple[int, Work], tuple[TensorKind, ...]] = {}
        """What a stage gives to the next one (F), and to the one before (B)."""

    def expect(self, sends: Mapping[int, Sequence[StagePass]]) -> None:
        """Set the receives from each device, in order."""
        for device, passes in sends.items():
            self._expected.setdefault(device, deque()).extend(passes)
            self._waiting.setdefault(device, 0)
            self._post(device, None)

    def send(self, each: StagePass, to: int, tensors: Sequence[torch.Tensor], *, says_kinds: bool) -> None:
        """Send the output of a pass, with its kind where the receiver cannot know it."""
        kinds = tuple(map(TensorKind.of, tensors))
        key = (each.stage, each.work)
        try:
            if says_kinds and self.kinds.get(key) != kinds:
                if key in self.kinds:
                    raise InputError(
                        f"expected stage {each.stage} to give tensors of {_shapes(self.kinds[key])} as before, "
                        f"found {_shapes(kinds)}: keep all batches of one size."
                    )
                self._start(to, _header(kinds, self._device))
                self.kinds[key] = kinds
            for tensor in tensors:
                self._start(to, tensor.detach().contiguous())
        except RuntimeError as error:
            raise lost_rank(error, "go on with the pipeline") from error

    def take(self, source: StagePass, device: int) -> list[torch.Tensor]:
        """Wait for the output of another device's pass."""
        try:
            if source not in self._posted:
                self._post(device, source)
            parts = self._posted.pop(source)
            self._waiting[device] -= 1
            for _, work in parts:
                self._wait(work)
            self._post(device, None)
        except RuntimeError as error:
            raise lost_rank(error, "go on with the pipeline") from error
        return [tensor for tensor, _ in parts]

    def send_now(self, to: int, tensors: Sequence[torch.Tensor]) -> None:
        """Send tensors of any shape outside of a program."""
        try:
            self._start(to, _header(tuple(map(TensorKind.of, tensors)), self._device))
            for tensor in tensors:
                self._start(to, tensor.detach().contiguous())
        except RuntimeError as error:
            raise lost_rank(error, "go on with the pipeline") from error

    def take_now(self, device: int) -> list[torch.Tensor]:
        """Receive tensors of any shape outside of a program."""
        try:
            return [self._received(kind, device) for kind in self._kinds_from(device)]
        except RuntimeError as error:
            raise lost_rank(error, "go on with the pipeline") from error

    def measured_seconds(self, hop: tuple[int, int], key: tuple[int, Work], rounds: int = 6) -> float:
        """Latency to the next device: half the round trip; 0 within a device.

        Args:
            hop: The device of the stage, and the other one.
            rounds: How often; the first time does not count.
        """
        own = self._layout.device
        if hop[0] == hop[1] or own not in hop:
            return 0.0
        self.finish()
        other = hop[1] if own == hop[0] else hop[0]
        tensors = [kind.empty(self._device) for kind in self.kinds[key]]
        found, clock = [], DeviceClock(self._device)
        for _ in range(rounds):
            begin = clock.now()
            for go in (True, False) if own == hop[0] else (False, True):
                for tensor in tensors:
                    if go:
                        self._start(other, tensor)
                    else:
                        group = self._groups[self._from(other)]
                        self._wait(dist.irecv(tensor, self._rank(other), group))
            found.append((clock.now() - begin) / 2)
        self.finish()
        return statistics.median(found[1:])

    def finish(self) -> None:
        """Wait until all sends have completed."""
        self._tokens.await_sent()

    def _post(self, device: int, needed: StagePass | None) -> None:
        """Post receives from a device: some ahead, and all up to the one needed."""
        queue = self._expected[device]
        while queue and (needed is not None or self._waiting[device] < self._ahead):
            source = queue[0]
            work = Work.FORWARD if source.work is Work.FORWARD else Work.BACKWARD
            kinds = self.kinds.get((source.stage, work))
            if kinds is None:
                if needed is None:
                    return
                kinds = self.kinds[source.stage, work] = self._kinds_from(device)
            queue.popleft()
            parts = []
            for kind in kinds:
                tensor = kind.empty(self._device)
                parts.append(
                    (tensor, dist.irecv(tensor, self._rank(device), self._groups[self._from(device)]))
                )
            self._posted[source] = parts
            self._waiting[device] += 1
            if source == needed:
                return

    def _kinds_from(self, device: int) -> tuple[TensorKind, ...]:
        """Receive the kinds of a device's next tensors."""
        header = self._received(TensorKind((_HEADER,), torch.int64, trained=False), device)
        return _kinds(header.tolist())

    def _received(self, kind: TensorKind, device: int) -> torch.Tensor:
        tensor = kind.empty(self._device)
        self._wait(dist.irecv(tensor, self._rank(device), self._groups[self._from(device)]))
        return tensor

    def _start(self, to: int, tensor: torch.Tensor) -> None:
        work = dist.isend(tensor, self._rank(to), self._groups[self._layout.device, to])
        self._tokens.watch(work, tensor)

    def _wait(self, work: Any) -> None:
        if self._device.type == "cuda":
            work.wait()  # orders the stream; with a limit it would hold the host up
        else:
            work.wait(self._layout.timeout)

    def _rank(self, device: int) -> int:
        return self._layout.rows[self._layout.replica][device]

    def _from(self, device: int) -> tuple[int, int]:
        return (device, self._layout.device)


def _header(kinds: Sequence[TensorKind], device: torch.device) -> torch.Tensor:
    numbers = [len(kinds)]
    for kind in kinds:
        if kind.dtype not in _TYPES:
            raise InputError(
                f"expected tensors between stages of a type such as float32 or int64, found {kind.dtype}."
            )
        numbers += [_TYPES.index(kind.dtype), int(kind.trained), len(kind.shape), *kind.shape]
    if len(numbers) > _HEADER:
        raise InputError(f"expected fewer tensors and dimensions between stages, found {_shapes(kinds)}.")
    return torch.tensor(numbers + [0] * (_HEADER - len(numbers)), dtype=torch.int64, device=device)


def _kinds(numbers: Sequence[int]) -> tuple[TensorKind, ...]:
    found, place = [], 1
    for _ in range(numbers[0]):
        kind, trained, dimensions = numbers[place : place + 3]
        shape = tuple(numbers[place + 3 : place + 3 + dimensions])
        found.append(TensorKind(shape, _TYPES[kind], bool(trained)))
        place += 3 + dimensions
    return tuple(found)


def _shapes(kinds: Sequence[TensorKind]) -> str:
    return " and ".join("x".join(map(str, kind.shape)) or "one number" for kind in kinds)
