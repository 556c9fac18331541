"""Slots: text and back, and what readers and files keep of them."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.topology.load import load
from coppice.topology.operations import subset
from coppice.topology.readers.document import topology_json
from coppice.topology.slots import Slot
from support.reader_samples import XML_DIRECT

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
STEPS = st.tuples(
    st.integers(0, 10**6),
    NAMES,
    st.integers(0, 10**6).map(lambda thousandths: Fraction(thousandths, 1000)),
    st.one_of(st.none(), st.integers(0, 99)),
)


@given(st.lists(STEPS, min_size=1, max_size=6))
def test_text_and_back(steps: list[tuple[int, str, Fraction, int | None]]) -> None:
    slot = Slot()
    for place, name, rate, dev in steps:
        slot = slot.below(place, name, rate, dev=dev)
    assert Slot.of(slot.text) == slot
    assert [step.gb_per_s for step in Slot.of(slot.text).steps] == [rate for _, _, rate, _ in steps]


@pytest.mark.parametrize(
    "text", ["", "cpu", "0.cpu@", "0.cpu@x", "0.cpu@1/", "0.cpu@1,dev", "0.cpu@1//1.a@2", "-1.a@2"]
)
def test_what_is_no_slot(text: str) -> None:
    with pytest.raises(InputError, match="expected a slot"):
        Slot.of(text)


def test_readers_and_files_keep_slots() -> None:
    box = load(XML_DIRECT)
    gpu, nic = box.node_index["gpu0"], box.node_index["mlx5_0"]
    assert box.slot[gpu] == "0.cpu0@16,maker=amd/1.0000:01:00.0@24/2.0000:02:00.0@24,dev=0,gdr=1"
    assert (box.slot[nic] or "").endswith(".mlx5_0@25,dev=0,port=1,guid=0x1")
    again = load(topology_json(box))
    assert again.slot == box.slot
    assert again == box
    one = subset(box, [1])
    assert one.slot[one.node_index["gpu1"]] == box.slot[box.node_index["gpu1"]]


def test_files_with_a_wrong_slot_are_refused() -> None:
    document = json.loads(topology_json(load(XML_DIRECT)))
    document["nodes"][0]["slot"] = "somewhere"
    with pytest.raises(InputError, match=r"nodes\[0\]\.slot"):
        load(json.dumps(document).encode())
    del document["nodes"][0]["slot"]
    switch = next(i for i, node in enumerate(document["nodes"]) if node["kind"] == "switch")
    document["nodes"][switch]["slot"] = "0.cpu0@16"
    with pytest.raises(InputError, match="no slot on a switch"):
        load(json.dumps(document).encode())
