"""Which rank runs which device of which replica of a pipeline, and the process groups between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch.distributed as dist

from coppice.errors import InputError


class PipelineLayout:
    """Devices in a row, and replicas of the row.

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
        """Devices in a row."""
        return len(self.rows[0])

    @property
    def replicas(self) -> int:
        """Replicas of the row."""
        return len(self.rows)

    def of_devices(self, devices: Iterable[int]) -> dist.ProcessGroup | None:
        """A group of these devices of all replicas; None where this rank is none of them. All ranks call it."""
        wanted = sorted(devices)
        return self._made([[row[device] for row in self.rows for device in wanted]]).get(0)

    def row_group(self) -> dist.ProcessGroup:
        """A group of the devices of this replica. All ranks call it."""
        return self._made(self.rows)[self.replica]

    def hop_groups(self, hops: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dist.ProcessGroup]:
        """For each pair of devices that this rank is one of, a group of the two. All ranks call it.

        One a direction, so that nothing waits behind what goes the other way.
        """
        every = sorted(set(hops))
        found = {}
        for row in self.rows:
            made = self._made([[row[device] for device in hop] for hop in every])
            found.update({every[number]: group for number, group in made.items()})
        return found

    def _made(self, every: Sequence[Sequence[int]]) -> dict[int, dist.ProcessGroup]:
        """Groups of ranks; those that this rank is in, by their place.

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
