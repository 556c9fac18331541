"""Runtimes that read MSCCL XML, with the limits of their loaders as data.

The three loaders descend from one another and differ in limits, names and attributes. Writer and doctor take every
limit from here, so that what the one writes the other accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.thread_blocks.cutting import AMD, NVIDIA, Buffers

_COLLECTIVES_OF_NCCL_FORK = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE: "reduce",
    Collective.BROADCAST: "broadcast",
    Collective.ALL_TO_ALL: "alltoall",
    Collective.REDUCE_SCATTER: "reduce_scatter",
}
_COLLECTIVES_OF_EXECUTORS = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE: "reduce",
    Collective.BROADCAST: "broadcast",
    Collective.ALL_TO_ALL: "alltoall",
    Collective.REDUCE_SCATTER: "reducescatter",
    Collective.GATHER: "gather",
    Collective.SCATTER: "scatter",
}


@dataclass(frozen=True, kw_only=True)
class MscclTarget:
    """Loader of MSCCL XML."""

    name: str  # Name by which it is chosen
    title: str  # The software
    versions: str  # Versions that read the files written for it
    status: str  # Where it stands today, in a few words
    collectives: Mapping[Collective, str]  # Value of `coll` for each collective that it runs
    other_collectives: tuple[str, ...]  # Further values of `coll` that its loader takes
    refused_types: frozenset[str] = frozenset()  # Step types that its loader or its kernel refuses
    extra_types: frozenset[str] = frozenset()  # Step types that only this loader knows
    required: tuple[str, ...]  # Attributes of `<algo>` that must be there
    max_steps: int  # Steps of a thread block; `s` stays below
    max_blocks: int  # Thread blocks of a GPU
    max_channels: int  # Channels of an algorithm
    max_peers: int = 32  # Thread blocks of a GPU that send (or receive) on one channel
    max_name: int | None = None  # Characters of `name`, or None
    # What `maxBytes` says where nobody sets a limit; finite where memory is allocated by it
    unlimited_bytes: int
    default_max_bytes: int | None  # `maxBytes` where the attribute is missing, or None where that is refused
    # Only messages smaller than `maxBytes` use the file; otherwise those of that size do, too, and 0 is no
    # limit
    below_max: bool = False
    # Scratch memory for a message of `maxBytes` is allocated when the communicator is made; otherwise for the
    # message of each call
    scratch_at_start: bool = False
    # `i_chunks` and `o_chunks` must agree with `nchunksperloop`, in every collective
    checks_chunks: bool = False
    checks_peers: bool = False  # Peers must be below `ngpus`
    # `inplace` and `outofplace` are two switches, and both may be on. Otherwise `inplace` alone says for
    # which of the two kinds of calls the file is.
    both_places: bool = False
    # A channel decides by which of its NICs a GPU sends (:mod:`coppice.program.dialects.thread_blocks.nics`); otherwise
    # each GPU has one NIC for all channels
    by_nic: bool = False
    max_files: int  # Algorithms that can be loaded at a time
    switches: str  # How the runtime is told to load and use the file
    buffers: Buffers = NVIDIA  # Buffers of its connections
    max_count: int = 72  # Steps move fewer slots than this
    max_fused: int = 16  # Consecutive `re` steps that run as one
    max_depid: int = 127  # Highest thread block that can be waited for; the loaders keep 8 bits with a sign
    max_offset: int = 32_767  # Highest slot; the loaders keep 16 bits with a sign
    # Elements that a rank keeps: its own thread blocks and steps, all GPUs, and the algorithm
    max_nodes: int = 4_096
    max_children: int = 1_024  # Children of one element
    max_attributes: int = 16  # Attributes of one element
    max_text: int = 255  # Characters of a name or value

    def max_bytes_of(self, largest: int | None) -> int:
        """Value of ``maxBytes`` for messages of up to ``largest`` bytes; None sets no limit.

        Examples:
            >>> target_named("rccl").max_bytes_of(64), target_named("msccl").max_bytes_of(64)
            (64, 65)
            >>> target_named("rccl").max_bytes_of(None), target_named("msccl").max_bytes_of(None) - 1 == 2**32
            (0, True)
        """
        return self.unlimited_bytes if largest is None else largest + self.below_max

    def largest_of(self, max_bytes: int) -> int | None:
        """Largest message allowed by a value of ``maxBytes``; None where there is no limit.

        Examples:
            >>> target_named("rccl").largest_of(0), target_named("msccl").largest_of(64)
            (None, 63)
        """
        if self.below_max:
            return max_bytes - 1
        return max_bytes or None

    def scratch_bytes(self, max_bytes: int, slots: int, chunks: int) -> int:
        """Scratch memory per GPU for a message of ``max_bytes``, in the 64-bit arithmetic of the loaders.

        Args:
            slots: ``s_chunks``.
            chunks: ``nchunksperloop``.

        Examples:
            >>> target_named("msccl").scratch_bytes(2**20, 3, 4)
            786432
        """
        return (max_bytes * slots) % 2**64 // chunks


_ALGORITHM = ("proto", "nchannels", "nchunksperloop", "ngpus", "coll")
_of_executor = partial(
    MscclTarget,
    collectives=_COLLECTIVES_OF_EXECUTORS,
    other_collectives=("send", "recv", "alltoallv"),
    required=(*_ALGORITHM, "inplace", "outofplace", "minBytes", "maxBytes"),
    max_steps=64,
    unlimited_bytes=0,
    default_max_bytes=None,
    both_places=True,
    by_nic=True,
    max_files=1_024,
)

TARGETS: Mapping[str, MscclTarget] = MappingProxyType(
    {
        target.name: target
        for target in (
            _of_executor(
                name="rccl",
                title="RCCL",
                versions="RCCL 2.18 to 2.27 with MSCCL (ROCm 5.7 to 7.10); off by default from 7.11, removed in 7.13",
                status="removed in ROCm 7.13",
                refused_types=frozenset({"rcs", "rrs", "rrc", "rrcs"}),
                max_blocks=64,
                max_channels=128,
                switches="MSCCL_ALGO_DIR=<folder of nothing else> RCCL_MSCCL_ENABLE=1 RCCL_MSCCL_FORCE_ENABLE=1",
                buffers=AMD,
            ),
            _of_executor(
                name="azure-executor",
                title="Azure msccl-executor-nccl",
                versions="msccl-executor-nccl 2.18 to 2.23 (2023 to 2024)",
                status="last changed in December 2024",
                max_blocks=1_024,
                max_channels=32,
                switches="MSCCL_ALGO_DIR=<folder of nothing else> NCCL_MSCCL_ENABLE=1",
            ),
            MscclTarget(
                name="msccl",
                title="microsoft/msccl",
                versions="microsoft/msccl 0.7 (NCCL 2.12)",
                status="not developed further since 2023",
                collectives=_COLLECTIVES_OF_NCCL_FORK,
                other_collectives=("custom",),
                extra_types=frozenset({"ra"}),
                required=("name", *_ALGORITHM, "inplace"),
                max_steps=256,
                max_blocks=216,
                max_channels=32,
                max_name=63,
                unlimited_bytes=2**32 + 1,
                default_max_bytes=2**27,
                below_max=True,
                scratch_at_start=True,
                checks_chunks=True,
                checks_peers=True,
                max_files=4,
                switches="MSCCL_XML_FILES=<file>[:<file>] NCCL_ALGO=MSCCL,RING,TREE",
            ),
        )
    }
)
"""All targets by name."""


def shares(collective: Collective, ranks: int) -> int:
    """Factor by which loaders count chunks and bytes below M: a gather has the size of one share.

    Examples:
        >>> shares(Collective.GATHER, 8), shares(Collective.ALL_GATHER, 8)
        (8, 1)
    """
    return ranks if collective in (Collective.GATHER, Collective.SCATTER) else 1


def target_named(name: str) -> MscclTarget:
    """Look up a target by name.

    Args:
        name: One of :data:`TARGETS`.

    Examples:
        >>> target_named("rccl").max_blocks
        64
    """
    target = TARGETS.get(name)
    if target is None:
        raise InputError(f"expected a target of MSCCL XML ({', '.join(TARGETS)}), found {name[:40]!r}.")
    return target
