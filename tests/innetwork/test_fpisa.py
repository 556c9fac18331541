"""FPISA as a protocol: SwitchML's slots with an adder of floats, whose sums are those of the numerics."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.numerics import fpisa_sum
from coppice.innetwork.simulated import simulate_all_reduce


def job_of(*, workers: int, values: int, approximate: int) -> _switch.AggregationJob:
    return _switch.AggregationJob(
        id=1,
        workers=workers,
        slots=2,
        values=values,
        window=2,
        element=_switch.Element.float32,
        timeout_ns=1000,
        give_up_timeout_ns=10**9,
        settings={"approximate": approximate},
    )


@pytest.mark.parametrize("approximate", [0, 1])
def test_sums_are_those_of_the_numerics_in_the_order_of_arrival(approximate: int) -> None:
    random = np.random.default_rng(approximate)
    for workers in (1, 2, 5, 32):
        node = _switch.aggregation_switch("fpisa", 2)
        node.open(job_of(workers=workers, values=64, approximate=approximate), list(range(workers)))
        saturated = overwritten = 0
        for packet_id in range(6):
            wide = 10.0 ** random.integers(-3, 4, (workers, 64))
            values = (random.standard_normal((workers, 64)) * wide).astype(np.float32)
            order = random.permutation(workers)
            pool = packet_id % 2 | (packet_id // 2 % 2) << 15
            replies = []
            for worker in order.tolist():
                # SwitchML's head: kind, job, packet id (little-endian), slot and set, two exponents.
                head = struct.pack("<BBI", 0x11, 1, packet_id) + struct.pack(">Hbb", pool, 0, 0)
                packet = head + values[worker].astype(">f4").tobytes()
                replies = node.receive(worker, packet, 0)
                node.receive(worker, packet, 0)  # once more: changes nothing
            expected = fpisa_sum(values[order], mode="approximate" if approximate else "full")
            found = np.frombuffer(replies[0][1], dtype=">f4", offset=10).astype(np.float32)
            assert np.array_equal(found.view(np.uint32), expected.sums.view(np.uint32))
            saturated += expected.overflowed
            overwritten += expected.overwritten
        counts = node.counters()
        assert (counts["saturated"], counts["evicted"]) == (saturated, overwritten)
        if approximate and workers > 1:
            assert overwritten > 0


def test_no_round_of_exponents() -> None:
    """As long as integers take, where SwitchML's floats need a window of packets more."""

    def time_us(protocol: str, element: str) -> float:
        return simulate_all_reduce(
            protocol=protocol, element=element, workers=4, elements=256 * 1000, slots=128
        ).time_us

    assert time_us("fpisa", "float32") == time_us("switchml", "int32") < time_us("switchml", "float32")


def test_integers_are_refused() -> None:
    with pytest.raises(InputError, match="float32 where the switch adds floats"):
        simulate_all_reduce(protocol="fpisa", element="int32", workers=2)
