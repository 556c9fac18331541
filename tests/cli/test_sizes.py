"""Sizes and lists of sizes, as command lines give them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.text import MOST_BYTES, parse_size, parse_sizes, short_size


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
    with pytest.raises(InputError, match=r"expected --size to be bytes such as"):
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
    assert "--sizes" in str(caught.value)


def test_too_many_sizes() -> None:
    with pytest.raises(InputError, match="at most 10,000 sizes"):
        parse_sizes(",".join(map(str, range(1, 10_002))))
