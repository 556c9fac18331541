"""Rows that other lines tore apart are joined where that can be done in one way, and counted where not."""

from __future__ import annotations

import random

import pytest

from coppice.collectives import Collective
from coppice.logs.reading import parse_log
from coppice.logs.records import Log

HEAD = """\
# Using devices
#  Rank  0 Group  0 Pid   4711 on       vm-a device  0 [0x0f] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4712 on       vm-a device  1 [0x2d] NVIDIA H100 80GB HBM3
vm-a:4711:4711 [0] NCCL INFO comm 0xd0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def row(size: int, time_us: float = 50.0) -> tuple[str, str, str]:
    """A row in the pieces in which nccl-tests prints it."""
    rate = size / time_us / 1000
    half = f"  {time_us:7.2f}  {rate:6.2f}  {rate:6.2f}  {0:6d}"
    return f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}", half, half


def choice(size: int) -> str:
    return f"vm-a:4711:4711 [0] NCCL INFO {size} Bytes -> Algo 1 proto 2 time 25.2"


def read(text: str) -> Log:
    return parse_log((HEAD + text).encode(), file="x", collective=Collective.ALL_REDUCE)


@pytest.mark.parametrize("prefix", ["", "[0] ", "2024-11-08T17:00:00.123Z "])
def test_torn_rows_are_joined_and_get_their_choice(prefix: str) -> None:
    lines = [f"{prefix}{line}" for line in HEAD.splitlines()]
    for size in (256, 1 << 20):
        noise = [f"{prefix}{choice(size)}"] * 3
        keys, first, second = row(size)
        lines += [prefix + keys + noise[0], *noise, prefix + first + noise[0], *noise, prefix + second]
    log = parse_log("\n".join(lines).encode(), file="x", collective=Collective.ALL_REDUCE)
    assert [(each.size_bytes, each.time_us) for each in log.measurements] == [
        (256, 50.0),
        (256, 50.0),
        (1 << 20, 50.0),
        (1 << 20, 50.0),
    ]
    assert {(each.algorithm, each.protocol) for each in log.measurements} == {("ring", "simple")}
    assert log.warnings == ("x: 2 rows joined that other lines had torn apart",)
    assert [each.calls for each in log.decisions] == [8, 8]


def test_a_row_may_be_torn_anywhere() -> None:
    """Also in the middle of a number; nothing is ever read that was not printed."""
    whole = "".join(row(1 << 20, 75.25))
    joined = 0
    for at in range(len(whole) + 1):
        log = read(f"{whole[:at]}{choice(9)}\n{whole[at:]}\n{''.join(row(1 << 21))}\n")
        assert {each.time_us for each in log.measurements} <= {75.25, 50.0}
        assert {each.size_bytes for each in log.measurements} <= {1 << 20, 1 << 21}
        joined += len(log.measurements) == 4
        assert len(log.measurements) == 4 or log.warnings
    assert joined > len(whole) // 2


def test_a_row_whose_end_is_lost_is_counted_and_spoils_no_other_row() -> None:
    first, second = row(1 << 20, 80.0), row(1 << 21, 50.0)
    text = f"{first[0]}{choice(1)}\n{second[0]}{choice(2)}\n{first[1]}{first[2]}\n{second[1]}{second[2]}\n"
    log = read(text)
    assert [each.time_us for each in log.measurements] == []
    (words,) = [words for words in log.warnings if "rows" in words]
    assert "x:8" in words
    assert "not read" in words


def test_pieces_of_mixed_runs_are_not_joined_by_guess() -> None:
    """With the rows of two runs, small sizes whose bandwidths are all 0.00 cannot tell whose a piece is."""
    devices = "#  Rank  0 Group  0 Pid   9 on       vm-b device  0 [0x0f] NVIDIA H100 80GB HBM3\n"
    keys, first, second = row(8)
    log = parse_log(
        (devices + HEAD + f"{keys}{choice(8)}\n{first}{second}\n{''.join(row(1 << 20))}\n").encode(),
        file="x",
        collective=Collective.ALL_REDUCE,
    )
    assert [each.size_bytes for each in log.measurements] == [1 << 20, 1 << 20]
    assert any("1 line looks like a row and is not read" in words for words in log.warnings)


def test_random_tears_never_invent_a_number() -> None:
    rng = random.Random(5)
    known = {(1 << power, 40.0 + power) for power in range(18, 26)}
    for _ in range(100):
        lines, lost = [], False
        for size, time_us in sorted(known):
            text = "".join(row(size, time_us))
            at = rng.randrange(12, len(text))
            pieces = [text[:at] + choice(7), choice(7), text[at:]]
            if rng.random() < 0.1:
                lost = True
                del pieces[rng.choice((0, 2))]
            lines += pieces if rng.random() < 0.6 or len(pieces) == 2 else [text]
        log = read("\n".join(lines) + "\n")
        assert {(each.size_bytes, each.time_us) for each in log.measurements} <= known
        assert len(log.measurements) == 16 or any("not read" in words for words in log.warnings) or lost


def test_a_count_that_does_not_fit_the_size_is_no_row() -> None:
    """The beginning of a size that was torn off shows at once where bandwidths are too small to tell."""
    keys, first, second = row(1 << 10, 40.0)
    whole = f"{keys}{first}{second}"
    at = whole.index("24")  # "10" stays before
    log = read(f"{whole[:at]}{choice(9)}\n{whole[at:]}\n")
    assert {each.size_bytes for each in log.measurements} <= {1024}
    headless = read(f"99 {whole[at:]}\n{whole}\n")
    assert {each.size_bytes for each in headless.measurements} == {1024}
    assert any("its figures do not fit the columns" in words for words in headless.warnings)
