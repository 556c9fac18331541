"""What protocols and channels cost, by hand: lines on the wire, latencies by box, a limit for each GPU."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.messages import messages_of
from coppice.simulation.channels import (
    TransportProfile,
    num_boxes,
    protocol,
    protocols,
    transport_profile,
    with_transport,
)
from coppice.simulation.engine import run
from coppice.simulation.models import Model, Sharing
from coppice.simulation.utilisation import busiest_links, check_conservation
from coppice.topology import Topology, preset, star, subset
from coppice.topology.generation import generation_of
from simulation.cases import ring_on, shift_on
from support.alpha_beta import simulate

FREE = Model(overhead_us=0)


def time_us(topology: Topology, size: int, wire: TransportProfile, model: Model = FREE, by: int = 1) -> float:
    body = shift_on(topology, by)
    messages = with_transport(messages_of(body, size), wire, model=model)
    timeline = run(
        messages, model=model, collective=body.collective, size_bytes=size, keep_rates=model.sharing == "fair"
    )
    check_conservation(timeline)
    return timeline.time_us


@pytest.mark.parametrize(("name", "wire_bytes"), [("simple", 4500), ("ll", 9000), ("ll128", 38 * 128)])
def test_a_message_in_a_box_by_hand(name: str, wire_bytes: int) -> None:
    """One block of 4,500 bytes at 450 GB/s: start, latency, and what is on the wire."""
    found = protocol(name)
    expected = found.start_us + found.box_us + wire_bytes / 450e3
    assert time_us(preset("dgx-h100"), 8 * 4500, TransportProfile(protocol=found)) == pytest.approx(
        expected, abs=1e-6
    )


def test_a_message_between_boxes_costs_the_network() -> None:
    cluster, found = preset("dgx-h100", boxes=2), protocol("ll128")
    expected = found.start_us + found.network_us + 128 * 2 / 50e3  # rank r to rank r + 8: its own rail
    assert time_us(cluster, 16 * 240, TransportProfile(protocol=found), by=8) == pytest.approx(
        expected, abs=1e-6
    )
    # Within the boxes, but for rank 7, which has to go to the other box: a mixture costs the larger.
    lone = star(2)  # GPUs of no host are boxes of their own
    expected = found.start_us + found.network_us + 128 / 1e3
    assert time_us(lone, 2 * 120, TransportProfile(protocol=found)) == pytest.approx(expected, abs=1e-6)


def test_latencies_of_links_count_once() -> None:
    pair = star(2)
    slow = replace(pair, latency_us=np.full(pair.num_links, 1.5))
    found = protocol("ll")  # 2.7 us between boxes, links included: 2 x 1.5 us are more than that
    assert time_us(slow, 8, TransportProfile(protocol=found)) == pytest.approx(
        found.start_us + 3.0 + 8 / 1e3, abs=1e-6
    )
    near = replace(pair, latency_us=np.full(pair.num_links, 0.5))
    assert time_us(near, 8, TransportProfile(protocol=found)) == pytest.approx(
        found.start_us + 2.7 + 8 / 1e3, abs=1e-6
    )


@pytest.mark.parametrize("sharing", list(Sharing))
def test_channels_limit_what_leaves_a_gpu(sharing: Sharing) -> None:
    """Four channels of 25 GB/s carry 100 of 450 GB/s, however many messages they are."""
    box = preset("dgx-h100")
    model = Model(overhead_us=0, sharing=sharing)
    wire = transport_profile(box, channels=4, channel_gb_per_s=25)
    assert wire.gpu_gb_per_s == 100
    size = 8 * 10**6
    assert time_us(box, size, wire, model) == pytest.approx(10**6 / 100e3, rel=1e-6)
    # All to all others at once: seven messages share the channels of their sender.
    body = plan_forest(Problem(topology=box, collective=Collective.ALL_GATHER))
    messages = with_transport(messages_of(body, size, pieces=16), wire, model=model)
    timeline = run(
        messages, model=model, collective=body.collective, size_bytes=size, keep_rates=sharing == "fair"
    )
    check_conservation(timeline)
    assert timeline.time_us >= 7 * 10**6 / 100e3 * (1 - 1e-9)
    assert timeline.time_us == pytest.approx(7 * 10**6 / 100e3, rel=0.02)
    busiest = timeline.topology.src[busiest_links(timeline, 8)]
    assert all(timeline.topology.node_ids[node].endswith(" channels") for node in busiest)


def test_wide_channels_change_nothing() -> None:
    box = preset("dgx-a100", boxes=2, fabric="switch")
    body = ring_on(box)
    plain = simulate(body, 2**22, model=FREE)
    wire = TransportProfile(gpu_gb_per_s=Fraction(10**6))
    messages = with_transport(messages_of(body, 2**22), wire, model=FREE)
    wide = run(messages, model=FREE, collective=body.collective, size_bytes=2**22)
    assert wide.time_us == pytest.approx(plain.time_us, rel=1e-6)
    assert wide.topology.num_ranks == plain.topology.num_ranks
    assert wide.busbw_gb_per_s == pytest.approx(plain.busbw_gb_per_s, rel=1e-6)
    assert wide.link_bytes.tolist() == plain.link_bytes.tolist()


def test_a_channel_carries_all_that_its_gpu_sends() -> None:
    box = preset("dgx-a100", boxes=2, fabric="switch")
    body = ring_on(box)
    plain = simulate(body, 2**22, model=FREE)
    wire = TransportProfile(gpu_gb_per_s=Fraction(100))
    narrow = run(
        messages_of(body, 2**22), model=FREE, collective=body.collective, size_bytes=2**22, profile=wire
    )
    count = plain.topology.num_links
    assert narrow.link_bytes[:count].tolist() == plain.link_bytes.tolist()
    sent = np.bincount(narrow.src, weights=narrow.num_bytes, minlength=plain.topology.num_nodes)
    assert narrow.link_bytes[count:].tolist() == sent[plain.topology.rank_nodes].tolist()


def test_switches_that_add_have_no_channels() -> None:
    from coppice import plan

    box = preset("dgx-h100")
    result = plan(Problem(topology=box, collective=Collective.ALL_REDUCE), in_network=True, ring=False)
    wire = transport_profile(box, protocol_name="simple", channels=16)
    messages = messages_of(result.plan.body, 2**30, pieces=32)
    nominal, limited = (
        run(messages, model=FREE, collective=Collective.ALL_REDUCE, size_bytes=2**30, profile=each)
        for each in (None, wire)
    )
    assert nominal.time_us < limited.time_us


def test_limits_come_from_the_tables() -> None:
    hopper = preset("dgx-h100")
    assert transport_profile(hopper, protocol_name="ll128", channels=4).gpu_gb_per_s == 4 * Fraction("36.7")
    assert transport_profile(hopper, channels=4).gpu_gb_per_s == 4 * Fraction("38.7")
    assert transport_profile(hopper, protocol_name="ll").gpu_gb_per_s == 141
    assert transport_profile(preset("dgx-h100", boxes=2), protocol_name="ll").gpu_gb_per_s == 39
    assert transport_profile(hopper, protocol_name="ll", channels=2).gpu_gb_per_s == 2 * Fraction("38.7")
    assert transport_profile(hopper, protocol_name="ll128").gpu_gb_per_s is None
    assert (
        transport_profile(star(4), protocol_name="ll128", channels=2, generation="volta").gpu_gb_per_s == 40
    )
    # On the wire a limit on data is wider by what is no data.
    wire = transport_profile(hopper, protocol_name="ll", channels=2, channel_gb_per_s=10)
    assert time_us(hopper, 8 * 10**6, wire) == pytest.approx(6.6 + 0.6 + 2 * 10**6 / 40e3, rel=1e-6)


def test_bad_wires_are_refused() -> None:
    box = preset("dgx-h100")
    for channels in (0, 65):
        with pytest.raises(InputError, match=r"1 \.\. 64 channels"):
            transport_profile(box, channels=channels)
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="rate of channels above 0"):
            transport_profile(box, channels=2, channel_gb_per_s=rate)
    with pytest.raises(InputError, match="give both"):
        transport_profile(box, channel_gb_per_s=5)
    with pytest.raises(InputError, match="store-and-forward"):
        time_us(box, 8, transport_profile(box, channels=2), Model(store_and_forward=True))


@given(st.sampled_from(["simple", "ll", "ll128"]), st.integers(0, 2**40))
def test_the_wire_carries_whole_lines(name: str, size: int) -> None:
    found = protocol(name)
    wire = int(found.wire_bytes_of(np.array([size]))[0])
    assert wire % found.wire_bytes == 0
    assert wire * found.data_bytes >= size * found.wire_bytes
    assert (wire - found.wire_bytes) * found.data_bytes < size * found.wire_bytes


def test_limits_by_generation_and_boxes() -> None:
    ll128, low_latency, simple = protocol("LL128"), protocol("ll"), protocol("simple")
    assert [ll128.channel_limit("hopper", boxes) for boxes in (1, 2, 3, 64)] == [36.7] * 4
    assert [simple.channel_limit("ampere", boxes) for boxes in (1, 2, 3, 64)] == [24.0, 23.6, 17.8, 17.8]
    assert [low_latency.gpu_limit("blackwell", boxes) for boxes in (1, 2, 8)] == [282.0, 39.0, 20.4]
    assert low_latency.channel_limit("hopper", 1) is None
    assert ll128.gpu_limit("hopper", 1) is None


def test_every_figure_has_a_source() -> None:
    for each in protocols().values():
        figures = {"start_us", "box_us", "network_us"}
        figures |= {name for name in ("channel_gb_per_s", "gpu_gb_per_s") if getattr(each, name)}
        assert set(each.sources) == figures
        assert each.box_us < each.network_us < each.start_us + each.network_us


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("dgx-1v", "volta"),
        ("ndv2", "volta"),
        ("dgx-a100", "ampere"),
        ("dgx-a100-pcie", "ampere"),
        ("dgx-h100", "hopper"),
        ("hgx-h200", "hopper"),
        ("dgx-b200", "blackwell"),
        ("gb200-nvl72", "blackwell"),
    ],
)
def test_generation_by_name(name: str, generation: str) -> None:
    assert generation_of(preset(name)) == generation
    assert generation_of(preset(name), "Volta") == "volta"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"ring of 8 .*gpu=volta\|ampere"):
        generation_of(preset("ring"))
    with pytest.raises(InputError, match="expected a generation of GPUs of volta"):
        generation_of(preset("ring"), "kepler")
    with pytest.raises(InputError, match="expected a protocol of simple, ll, ll128, found 'll64'"):
        protocol("ll64")


def test_boxes_are_counted_among_the_ranks() -> None:
    assert num_boxes(preset("dgx-h100", boxes=4)) == 4
    assert num_boxes(subset(preset("dgx-h100", boxes=4), [0, 1, 8])) == 2
    assert num_boxes(preset("ring", gpus=5)) == 5
