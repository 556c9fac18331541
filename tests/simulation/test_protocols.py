"""Protocols: whole lines on the wire, figures by generation and number of boxes, each with its source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.simulation.channels import num_boxes, protocol, protocols
from coppice.topology import preset, subset
from coppice.topology.generation import generation_of


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
