"""Markup: whatever a topology is called, what is written is well-formed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coppice.report.svg import drawing, element, escape, fitted, number


@given(st.text())
@example('a & b < c > d "e" &amp;')
def test_any_text_is_well_formed_and_read_back(text: str) -> None:
    tree = ET.fromstring(element("text", escape(text), class_=text, x=1.0))
    assert set(tree.attrib) == {"class", "x"}
    if text.isprintable():
        assert (tree.text or "") == text
        assert tree.get("class") == text


@pytest.mark.parametrize("text", ["\x00", "\x0b", "\ud800", "\uffff"])
def test_what_xml_cannot_hold_is_replaced(text: str) -> None:
    assert ET.fromstring(element("text", escape(text))).text == "\ufffd"


def test_elements() -> None:
    assert element("g") == "<g></g>"
    assert element("rect", stroke_width=2, class_=None) == '<rect stroke-width="2"/>'
    assert element("a", escape("<"), element("b")) == "<a>&lt;<b></b></a>"
    picture = ET.fromstring(drawing(10, 20.25, name="x", label='a "b"'))
    assert picture.get("viewBox") == "0 0 10 20.2"
    assert picture.get("aria-label") == 'a "b"'


@given(st.floats(min_value=-1e6, max_value=1e6))
def test_numbers_are_short_and_close(value: float) -> None:
    text = number(value)
    assert abs(float(text) - value) <= 0.0501
    assert text != "-0"
    assert "e" not in text


@given(st.text(max_size=30), st.floats(min_value=0, max_value=300), st.integers(min_value=6, max_value=20))
def test_labels_fit(label: str, width: float, size: int) -> None:
    assert len(fitted(label, width, size)) * 0.62 * size <= width + 1e-9
