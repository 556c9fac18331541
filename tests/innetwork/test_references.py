"""Native machines and their references, side by side: the same bytes, deadlines and counts, packet by packet, whatever
the network does, and exact sums where nothing is spoilt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from innetwork import test_atp, test_camdoop, test_netreduce, test_sharp, test_streaming
from reference.innetwork.driving import Altering, Exchange
from support.blocks import blocks


def camdoop(seed: int) -> None:
    test_camdoop.play(seed)
    test_camdoop.play_pairs(seed)


# A third of the seeds is hostile: packets are spoilt, and sums need not come.
PLAYED: dict[str, Callable[[int], None]] = {
    "camdoop": camdoop,
    "sharp": test_sharp.play,
    "streaming": test_streaming.play,
}
RACKS = {"atp": test_atp.Rack, "netreduce": test_netreduce.Net}


@pytest.mark.parametrize("protocol", PLAYED)
@pytest.mark.parametrize("part", range(2))
@pytest.mark.spread(2)
def test_native_machines_and_references_answer_alike(protocol: str, part: int) -> None:
    seeds = 40 if protocol == "streaming" else 30
    for seed in range(seeds * part, seeds * (part + 1)):
        PLAYED[protocol](seed)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PLAYED)
def test_native_machines_and_references_answer_alike_at_length(protocol: str) -> None:
    for seed in range(1000, 1500):
        PLAYED[protocol](seed)


@pytest.mark.parametrize("protocol", RACKS)
@pytest.mark.parametrize("seed", blocks(60, always=12))
def test_two_jobs_send_the_same_bytes_and_sums_are_exact(protocol: str, seed: int) -> None:
    rack = RACKS[protocol](seed, Exchange(seed, 0.05 * (seed % 4), 0.1 * (seed % 2), 0.2 * (seed % 3 > 0)))
    for _ in range(2):
        rack.begin()
        rack.exchange.run(rack.done)
        rack.check()


@pytest.mark.parametrize("protocol", RACKS)
@pytest.mark.parametrize("seed", blocks(40, always=8))
def test_two_jobs_agree_on_packets_with_changed_bytes(protocol: str, seed: int) -> None:
    exchange = Altering(seed, 0.05 * (seed % 4), 0.1, 0.5)
    rack = RACKS[protocol](seed, exchange)
    rack.begin()
    exchange.run_for(1000, rack.done)
