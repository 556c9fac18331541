"""Readers meet damaged files: each is read or refused with a sentence, fast and in little memory."""

from __future__ import annotations

import random
import resource
import time

import pytest

from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.readers import read
from support.injuries import injured
from support.reader_samples import SAMPLES

FEW, MANY = 200, 10_000
MOST_SECONDS_EACH = 60.0  # or it hangs
MOST_MEMORY_KB = 300_000


def survive(sample: str, runs: int) -> None:
    data, options = SAMPLES[sample]
    rng = random.Random(f"coppice {sample}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_well = 0
    for run in range(runs):
        damaged = injured(rng, sample, data)
        begin = time.perf_counter()
        try:
            topology = read(damaged, options=options).topology
        except InputError as error:
            assert 0 < len(str(error)) < 2000, (run, str(error)[:200])  # noqa: PT017
        else:
            read_well += 1
            assert isinstance(topology, Topology)
            assert topology.num_nodes <= len(damaged)
            assert len(topology.sha256) == 64
        assert time.perf_counter() - begin < MOST_SECONDS_EACH, (run, damaged[:200])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < MOST_MEMORY_KB
    assert 0 < read_well < runs, "the injuries must neither all be fatal nor all be harmless"


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_few_hundred_damaged_files(sample: str) -> None:
    survive(sample, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_ten_thousand_damaged_files(sample: str) -> None:
    survive(sample, MANY)


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 1_000_000,
        b'{"format":' * 100_000,
        b"<a>" * 1_000_000,
        b"<system>" + b"<cpu numaid='0'/>" * 200_000 + b"</system>",
        b"<system>" + b"<cpu numaid='0' arch='x'><pci/></cpu>" * 1000,
        b"nodes: " + b"[" * 1_000_000,
        b"nodes: " + b"{a: " * 100_000,
        b"nodes: &a [1]\nlinks: [" + b"*a, " * 100_000 + b"]",
        b"GPU0 " * 200_000,
        b"GPU0 GPU1\n" * 200_000,
        b"GPU0 GPU1\nGPU0 " + b"NV1" * 6000 + b"?",
        b"Weight between two GPUs\nGPU0 GPU1\nGPU0 " + b"9" * 19_000 + b"?",
        b"Weight between two GPUs\n" + b"=" * 1_000_000,
        b"\n" * 3_000_000,
        b"GPU0 GPU1\n" + b"\r" * 3_000_000,
        b"GPU0 GPU1\n" + b" " * 3_000_000 + b"GPU0",
        (b"[" * 70 + b"m GPU0 ") * 40_000,
        b"GPU" + b"\x1b[32m" * 500_000 + b"x",
        b"GPU" + b"\x1b[" * 500_000 + b"x",
    ],
    ids=lambda bomb: bomb[:12].decode(),
)
def test_bombs_are_refused(bomb: bytes) -> None:
    begin = time.perf_counter()
    with pytest.raises(InputError):
        read(bomb)
    assert time.perf_counter() - begin < MOST_SECONDS_EACH
