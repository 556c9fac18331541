"""Channels and threads of a call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.selection.nccl.costs import Channels, NcclCommunicator
from coppice.selection.nccl.kernel import kernel_of

A100 = NcclCommunicator(
    ranks=8,
    nodes=1,
    generation="ampere",
    cpu="amd",
    ring=Channels(count=12, within=20, across=20),
    tree=Channels(count=12, within=20, across=20),
    channels=24,
)
H100 = replace(A100, generation="hopper", nvls=Channels(count=8, within=40, across=60), nvls_channels=16)


@pytest.mark.parametrize(
    ("collective", "algorithm", "protocol", "size", "channels", "filled", "threads"),
    [
        # The cost model allows 24 channels for a broadcast of 1 MiB; cells of 32 KiB fill 16 of them, two each.
        (Collective.BROADCAST, "Ring", "Simple", 2**20, 24, 16, 544),
        # 16 cells of 4 KiB, since LL carries four bytes for one and an all-reduce two: eight for each channel.
        (Collective.ALL_REDUCE, "Ring", "LL", 2**16, 2, 2, 512),
        (Collective.ALL_REDUCE, "Ring", "LL", 4, 1, 1, 96),
        (Collective.ALL_REDUCE, "Tree", "Simple", 2**30, 24, 24, 640),
        (Collective.ALL_REDUCE, "NVLS", "Simple", 2**24, 16, 16, 640),
        (Collective.ALL_GATHER, "PAT", "Simple", 1024, 24, 1, 640),
    ],
)
def test_calls(
    collective: Collective, algorithm: str, protocol: str, size: int, channels: int, filled: int, threads: int
) -> None:
    found = kernel_of(H100, collective, algorithm, protocol, size)
    assert (found.channels, found.filled, found.threads) == (channels, filled, threads)


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]),
    st.sampled_from(["LL", "LL128", "Simple"]),
    st.integers(1, 2**40),
    st.integers(1, 64),
    st.integers(2, 64),
)
def test_no_channel_is_filled_that_is_not_allowed(
    collective: str, protocol: str, size: int, channels: int, ranks: int
) -> None:
    comm = replace(A100, channels=channels, ranks=ranks)
    found = kernel_of(comm, Collective(collective), "Ring", protocol, size)
    assert 1 <= found.filled <= comm.channels
    assert 1 <= found.channels <= comm.channels
    assert found.threads % 32 == 0
    more = kernel_of(comm, Collective(collective), "Ring", protocol, 2 * size)
    assert more.channels >= found.channels
