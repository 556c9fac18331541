"""Weight files: exact, in several spellings, refused with the place."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.bounds.weights import parse_demands, parse_weights, read_demands, read_weights
from coppice.errors import InputError


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("[1, 2, 3]", (1, 2, 3)),
        ("1\n2\n3\n", (1, 2, 3)),
        ("1 2 3", (1, 2, 3)),
        ("1, 2, 3  # skewed", (1, 2, 3)),
        ("[0.1, 0.25]", (2, 5)),
        ('["1/3", "1/2"]', (2, 3)),
        ("[2, 4]", (2, 4)),
        ("[0, 1]", (0, 1)),
    ],
)
def test_spellings(text: str, weights: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text(text)
    assert read_weights(str(path)) == weights


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "none"),
        ("[]", "none"),
        ("[1, -1]", "$[1]"),
        ("[1, true]", "$[1]"),
        ("[1, 1e400]", "$[1]"),
        ('[1, "1/0"]', "$[1]"),
        ("[1, {}]", "$[1]"),
        ("1\nx", "row 1"),
        ("1 2\n3", "rows"),
        ("[1", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[4294967296, 1]", "2^31"),
    ],
)
def test_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_weights(text, where="w")
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_demands(tmp_path: Path) -> None:
    path = tmp_path / "demands.json"
    path.write_text("[[0, 1], [2.5, 0]]")
    assert read_demands(str(path)) == ((0, 2), (5, 0))
    with pytest.raises(InputError, match="square"):
        parse_demands("[[0, 1]]", where="d")
    with pytest.raises(InputError, match="absent"):
        read_demands(str(tmp_path / "absent"))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_demands(str(path))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        weights = parse_weights(text, where="w")
    except InputError:
        return
    assert weights
    assert min(weights) >= 0


@given(st.lists(st.fractions(0, 1000, max_denominator=20), min_size=1, max_size=8))
def test_ratios_are_kept(values: list[Fraction]) -> None:
    weights = parse_weights("\n".join(map(str, values)), where="w")
    assert [w * sum(values) for w in weights] == [v * sum(weights) for v in values]
