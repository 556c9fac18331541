"""All-reduces over the simulated network: exact under every fault, at the rate that theory gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.simulated import simulate_all_reduce
from coppice.innetwork.systems import PROTOCOLS, find_protocol

HEAD = 10


def law_us(
    *, slots: int, values: int, packets: int, gb_per_s: float, latency_us: float, overhead: int
) -> float:
    """Time of SwitchML without loss (NSDI 2021, section 3.6): the link, or a window for each round trip."""
    wire = (4 * values + HEAD + overhead) / gb_per_s / 1000
    trip = 2 * (latency_us + wire)
    return packets * max(wire, trip / slots) + trip


def test_each_native_protocol_has_its_record() -> None:
    assert set(PROTOCOLS) == set(_switch.aggregation_protocols())
    assert list(PROTOCOLS) == sorted(PROTOCOLS)
    with pytest.raises(InputError, match="did you mean 'switchml'"):
        find_protocol("switchm")


@pytest.mark.parametrize("tree", [None, [2, 2]])
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_every_protocol_is_exact_and_leaves_nothing(protocol: str, tree: list[int] | None) -> None:
    floats = protocol == "fpisa"
    for seed in range(3):
        run = simulate_all_reduce(
            workers=4,
            tree=tree,
            protocol=protocol,
            elements=(2000, 0, 300),
            element="float32" if floats else "int32",
            slots=512 if protocol == "netreduce" else 16,
            window=8,
            drop=0.02,
            duplicate=0.02,
            reorder=0.05,
            timeout_ms=0.2,
            seed=seed,
        )
        assert (run.complete, run.wrong) == (True, 0), run
        assert run.worst_error < (1e-5 if floats else 1e-300)


@pytest.mark.parametrize("values", [64, 256])
@pytest.mark.parametrize("slots", [32, 64, 128, 512])
@pytest.mark.parametrize("workers", [1, 8])
def test_throughput_without_loss_is_the_law(workers: int, slots: int, values: int) -> None:
    packets = 4000
    run = simulate_all_reduce(
        workers=workers,
        elements=values * packets,
        slots=slots,
        values=values,
        latency_us=1.4,
        overhead_bytes=72,
    )
    law = law_us(slots=slots, values=values, packets=packets, gb_per_s=12.5, latency_us=1.4, overhead=72)
    assert run.complete
    assert run.wrong == 0
    assert run.time_us == pytest.approx(law, rel=0.02)


def test_published_efficiencies() -> None:
    # Frames of 82 + 4 k bytes: 92.6 % of the link with 256 values, 75.7 % with 64.
    for values, share in ((256, 0.926), (64, 0.757)):
        run = simulate_all_reduce(
            workers=4, elements=values * 20_000, slots=512, values=values, overhead_bytes=72
        )
        assert run.algbw_gb_per_s / 12.5 == pytest.approx(share, abs=0.003)


def test_loss_costs_time_in_proportion() -> None:
    # A lost packet stalls its slot for a time-out: with 128 slots that of each of them, on its own.
    times = [
        simulate_all_reduce(
            workers=8, elements=256 * 5_000, slots=128, drop=drop, timeout_ms=1.0, seed=1
        ).time_us
        for drop in (0, 1e-4, 1e-3, 1e-2)
    ]
    assert times == sorted(times)
    # 16 crossings a packet; each lost one keeps a slot of 128 for the time-out.
    for drop, time in zip((1e-4, 1e-3, 1e-2), times[1:], strict=True):
        stall = 5_000 * 16 * drop * 1000 / 128
        assert times[0] + 0.3 * stall < time < times[0] + 3 * stall + 3000


def test_learned_timeouts_are_shorter() -> None:
    def run(adaptive: int) -> float:
        found = simulate_all_reduce(
            workers=4, elements=256 * 5000, drop=0.01, seed=5, settings={"adaptive_timeout": adaptive}
        )
        assert found.complete
        assert found.wrong == 0
        return found.time_us

    assert run(1) < run(0) / 20


@settings(max_examples=150, deadline=None)
@given(
    groups=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    slots=st.integers(1, 8),
    window=st.integers(1, 8),
    values=st.sampled_from([1, 7, 64]),
    elements=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    faults=st.tuples(*[st.floats(0, 0.2)] * 3),
    first=st.sampled_from([0, 1, 2**32 - 7]),
    seed=st.integers(0, 2**32),
)
def test_sums_are_exact_under_every_fault(
    groups: list[int],
    slots: int,
    window: int,
    values: int,
    elements: list[int],
    faults: tuple[float, float, float],
    first: int,
    seed: int,
) -> None:
    run = simulate_all_reduce(
        workers=sum(groups),
        tree=groups,
        elements=elements,
        slots=slots,
        window=min(window, slots),
        values=values,
        drop=faults[0],
        duplicate=faults[1],
        reorder=faults[2],
        reorder_us=100,
        timeout_ms=0.05,
        settings={"first_packet": first},
        seed=seed,
    )
    assert (run.complete, run.wrong) == (True, 0), run


def test_a_straggler_makes_the_others_wait() -> None:
    run = simulate_all_reduce(workers=3, elements=1000, starts_us=[0, 0, 5e4])
    assert run.complete
    assert run.wrong == 0
    assert run.time_us > 5e4


def test_floats_are_summed_within_the_bound() -> None:
    run = simulate_all_reduce(workers=8, elements=10_001, element="float32", drop=0.01, timeout_ms=0.1)
    assert run.complete
    # Block floating point: n / (2 scale) of 8 workers with values up to 1, and the rounding of the sum.
    assert 0 < run.worst_error < 8 * 8 / 2**31 + 8 / 2**24


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 0}, "expected 1 worker or more"),
        ({"workers": 33}, "1 to 32 workers"),
        ({"workers": 4, "tree": [2, 1]}, "make the groups add up"),
        ({"workers": 2, "window": 65}, "window"),
        ({"workers": 2, "slots": 8193}, "8192 slots"),
        ({"workers": 2, "values": 2049}, "2048 values"),
        ({"workers": 2, "drop": 1.0}, "`drop`"),
        ({"workers": 2, "gb_per_s": 0.0}, "`gb_per_s`"),
        ({"workers": 2, "element": "int8"}, "int32, float32"),
        ({"workers": 2, "elements": -1}, "`elements`"),
        ({"workers": 2, "crash_worker": 2}, "`crash_worker`"),
        ({"workers": 2, "restart_switch": 1}, "`restart_switch`"),
        ({"workers": 2, "timeout_ms": 0.0}, "`timeout_ms`"),
        ({"workers": 2, "latency_us": -1.0}, "`latency_us`"),
        ({"workers": 2, "protocol": "tcp"}, "expected a protocol"),
        ({"workers": "2"}, "to be an int"),
    ],
)
def test_wrong_arguments(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate_all_reduce(**wrong)  # type: ignore[arg-type]
