"""Numbers and words for people, and sizes as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.text import (
    MOST_BYTES,
    columns,
    nearest,
    parse_size,
    parse_sizes,
    percent_text,
    plural,
    rate_line,
    rate_text,
    short_size,
    shortened,
    size_text,
    suggestion,
    time_text,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1", 1),
        ("1000", 1000),
        ("1K", 1024),
        ("1k", 1024),
        ("3KB", 3072),
        ("3KiB", 3072),
        ("8B", 8),
        ("0.5M", 524288),
        (" 64M ", 2**26),
        ("4G", 2**32),
        ("2T", 2**41),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1X", "1KK", "0x10", "1e6", "1.", ".5K", "nan", "٣", "1 000"]
)
def test_no_size(text: str) -> None:
    with pytest.raises(InputError, match=r"expected the size to be bytes such as"):
        parse_size(text)


def test_whole_bytes_that_fit() -> None:
    with pytest.raises(InputError, match=r"whole bytes, found .0\.3K., which is 307\.2 bytes"):
        parse_size("0.3K")
    with pytest.raises(InputError, match="at most 9,223,372,036,854,775,807 bytes"):
        parse_size("8388608T")


@given(st.integers(0, MOST_BYTES))
def test_short_size_reads_back(size: int) -> None:
    assert parse_size(short_size(size)) == size


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K", (1024,)),
        ("1K:4K", (1024, 2048, 4096)),
        ("1K:5K", (1024, 2048, 4096)),
        ("1K:1K", (1024,)),
        ("1K:64K:4", (1024, 4096, 16384, 65536)),
        ("4K,1K,4K", (1024, 4096)),
        ("3:30:3,0", (0, 3, 9, 27)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


def test_doubling_of_the_documents() -> None:
    assert len(parse_sizes("1K:4G")) == 23


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "bytes such as"),
        ("1K,", "bytes such as"),
        ("1K:2K:3:4", "ranges such as"),
        ("4K:1K", "rise from 1 byte or more"),
        ("0:1K", "rise from 1 byte or more"),
        ("1K:4K:1", "a factor of 2 or more"),
        ("1K:4K:x", "a factor of 2 or more"),
        ("1K:4K:", "a factor of 2 or more"),
    ],
)
def test_no_sizes(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_sizes(text)
    assert "the sizes" in str(caught.value)


def test_too_many_sizes() -> None:
    with pytest.raises(InputError, match="at most 10,000 sizes"):
        parse_sizes(",".join(map(str, range(1, 10_002))))


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (Fraction(0), "0%"),
        (Fraction(1, 2), "50%"),
        (Fraction(2, 3), "66.7%"),
        (Fraction(9999, 10000), "99.99%"),
        (Fraction(10**9 - 1, 10**9), "99.999999%"),
        (Fraction(8, 10**5), "0.008%"),
        (Fraction(1, 10**12), "0.000001%"),
        (Fraction(1), "100%"),
        (Fraction(3, 2), "150%"),
    ],
)
def test_percentages_are_not_rounded_to_a_whole_or_to_nothing(share: Fraction, text: str) -> None:
    assert percent_text(share) == text


def test_rates_tell_what_decimals_do_not_show() -> None:
    assert [rate_text(Fraction(n, d)) for n, d in ((0, 1), (25, 2), (1, 3), (1, 10**6))] == [
        "0", "12.5", "0.3333", "1e-06",
    ]  # fmt: skip
    assert rate_line(Fraction(1, 3)) == "0.333333 GB/s (1/3)"
    assert rate_line(Fraction(50)) == "50 GB/s"


def test_units_fit() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 2**40, 2**51)] == [
        "0 B", "1023 B", "1 KiB", "1 TiB", "2048 TiB",
    ]  # fmt: skip
    assert [time_text(us) for us in (0, 999, 1000, 1e6)] == ["0 us", "999 us", "1 ms", "1 s"]


def test_words() -> None:
    assert [plural(n, "box") for n in (0, 1, 2)] == ["0 boxes", "1 box", "2 boxes"]
    assert shortened([], 2) == ""
    assert shortened([3, 5, 7, 9], 2) == "3, 5 and 2 more"


def test_what_was_meant() -> None:
    assert nearest("rign", ["ring", "tree"]) == "ring"
    assert nearest("ring" * 1000, ["tree"]) is None
    assert nearest("x", []) is None
    assert suggestion("rign", ["ring"], otherwise="look.") == "did you mean 'ring'?"
    assert suggestion("x", ["ring"], otherwise="look.") == "look."


def test_columns() -> None:
    rows = [("name", "us", ""), ("ring", "12.5", "slow")]
    assert columns(rows) == ["name  us", "ring  12.5  slow"]
    assert columns(rows, "lrl") == ["name    us", "ring  12.5  slow"]
    assert columns([]) == []
