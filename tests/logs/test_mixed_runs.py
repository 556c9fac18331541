"""Several runs in one file: after each other, mixed without MPI, or on streams of their own; each with its ranks."""

from __future__ import annotations

import random

import pytest

from coppice.collectives import Collective
from coppice.logs.reading import parse_log
from coppice.logs.records import Log


def preamble(ranks: int, host: str, program: str = "", *, first: int = 0, nodes: int = 1) -> str:
    lines = [f"# Collective test starting: {program}"] if program else []
    lines += ["# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor)", "# Using devices"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {7 + rank:6d} on {host + str(rank * nodes // ranks):>10} device {rank:2d} "
        "[0x0f] NVIDIA H100"
        for rank in range(first, ranks)
    ]
    return "\n".join([*lines, ""])


HEAD = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""


def rows(*sizes: int, factor: float = 1.75, redop: str = "sum") -> str:
    text = ""
    for size in sizes:
        rate = size / 50.0 / 1000
        half = f"  {50.0:7.2f}  {rate:6.2f}  {factor * rate:6.2f}  {0:5d}"
        text += f"{size:12d}  {size // 4:12d}  {'float':>8}  {redop:>6}  {-1:6d}{half}{half}\n"
    return text


END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 160.8\n#\n"
GIB = 1 << 30


def read(text: str, collective: Collective | None = Collective.ALL_REDUCE) -> Log:
    return parse_log(text.encode(), file="x", collective=collective)


def shapes(log: Log) -> list[tuple[int | None, int | None]]:
    return [(row.ranks, row.nodes) for row in log.measurements if not row.in_place]


def test_runs_without_mpi_are_runs_of_fewer_ranks() -> None:
    mixed = preamble(8, "a") + preamble(8, "b") + HEAD + HEAD + rows(GIB, GIB, 2 * GIB, 2 * GIB) + END + END
    log = read(mixed)
    assert shapes(log) == [(8, 1)] * 4
    (words,) = log.warnings
    assert words == (
        "x lists ranks 0 to 7 2 times (a0, b0): these are 2 runs of 8 ranks each at the same time, whose rows are "
        "mixed, not one run of 16 ranks: build nccl-tests with MPI=1 for that"
    )


def test_lists_of_ranks_may_be_mixed_line_by_line() -> None:
    one, two = preamble(4, "a").splitlines(), preamble(4, "b").splitlines()
    lines = [line for pair in zip(one, two, strict=True) for line in reversed(pair)]
    log = read("\n".join(lines) + "\n" + HEAD + rows(GIB, GIB, factor=1.5) + END + END)
    assert shapes(log) == [(4, 1)] * 2
    assert "2 runs of 4 ranks each" in log.warnings[0]


def test_a_second_run_may_begin_between_rows() -> None:
    text = (
        preamble(8, "a")
        + HEAD
        + rows(GIB)
        + preamble(8, "b")
        + HEAD
        + rows(GIB, 2 * GIB, 2 * GIB)
        + END
        + END
    )
    log = read(text)
    assert shapes(log) == [(8, 1)] * 4
    assert any("2 runs of 8 ranks each" in words for words in log.warnings)


def test_mixed_runs_of_unequal_sizes_have_no_shape() -> None:
    log = read(preamble(8, "a") + preamble(4, "b") + HEAD + rows(GIB, GIB) + END + END)
    assert shapes(log) == [(None, None)] * 2
    assert "of unequal numbers of ranks" in log.warnings[0]


def test_one_run_over_nodes_is_one_run() -> None:
    log = read(preamble(16, "a", nodes=2) + HEAD + rows(GIB, 2 * GIB, factor=1.875) + END)
    assert shapes(log) == [(16, 2)] * 2
    assert log.warnings == ()


def test_a_run_that_was_started_again_is_one_run() -> None:
    """The first start printed no row: nothing is mixed, and the ranks are not added up."""
    log = read(preamble(8, "a") + preamble(8, "a") + HEAD + rows(GIB, 2 * GIB) + END)
    assert shapes(log) == [(8, 1)] * 2
    (words,) = log.warnings
    assert "lists ranks 0 to 7 2 times (a0), but no size twice" in words


def test_runs_after_each_other_keep_their_programs_and_ranks() -> None:
    text = (
        preamble(8, "a", "all_reduce_perf")
        + HEAD
        + rows(GIB, 2 * GIB)
        + END
        + preamble(4, "a", "all_gather_perf")
        + HEAD
        + rows(GIB, factor=0.75, redop="none")
        + END
    )
    log = read(text, None)
    assert [(str(row.collective), row.ranks) for row in log.measurements if row.in_place] == [
        ("all_reduce", 8),
        ("all_reduce", 8),
        ("all_gather", 4),
    ]
    assert log.warnings == ()
    said = read(text, Collective.ALL_REDUCE)
    assert [row.collective for row in said.measurements] == [row.collective for row in log.measurements]
    assert said.warnings == ("x says that it ran all_gather_perf: that counts, not all_reduce",)


def test_processes_on_streams_of_their_own() -> None:
    tables = [preamble(1, host) + HEAD + rows(GIB, 2 * GIB, factor=0) + END for host in "ab"]
    lines = [
        f"[1,{number}]<stdout>:{line}"
        for pair in zip(*(table.splitlines() for table in tables), strict=True)
        for number, line in enumerate(pair)
    ]
    log = read("\n".join(lines))
    assert shapes(log) == [(1, 1)] * 4
    (words,) = log.warnings
    assert "2 processes print tables of their own, each with ranks from 0" in words
    assert "MPI=1" in words


def test_cycles_are_repetitions_and_sizes_that_go_back_are_doubted() -> None:
    head = preamble(8, "a") + HEAD
    again = rows(GIB, 2 * GIB, 4 * GIB)
    assert read(head + again + "# Testing 2 cycle.\n" + again + END).warnings == ()
    assert read(head + again + again + again + END).warnings == ()
    (words,) = read(head + rows(GIB, 2 * GIB, GIB, 4 * GIB, 2 * GIB, 4 * GIB) + END).warnings
    assert "sizes go back in the middle of a table" in words


def test_busbw_tells_of_other_ranks_and_collectives() -> None:
    (words,) = read(preamble(16, "a", nodes=2) + HEAD + rows(GIB) + END).warnings
    assert "busbw is 1.75 times algbw, as on 8 ranks, where all_reduce on 16 ranks has 1.875 times" in words
    (words,) = read(preamble(8, "a") + HEAD + rows(GIB, factor=0.875) + END).warnings
    assert "was it another collective" in words


def test_a_list_of_ranks_that_is_cut_tells_no_ranks() -> None:
    log = read(preamble(8, "a") + "...\n" + HEAD + rows(GIB) + END)
    assert shapes(log) == [(None, None)]
    assert any("list of ranks is not whole" in words for words in log.warnings)


def test_the_command_tells_what_was_run() -> None:
    text = preamble(8, "a") + HEAD + rows(GIB) + END
    log = read("root@n1:~# mpirun -np 8 ./build/all_reduce_perf -b 1G -e 1G\n" + text, None)
    assert {str(row.collective) for row in log.measurements} == {"all_reduce"}


def test_choices_without_a_collective_reach_only_the_rows_of_one_program() -> None:
    choice = "n1:7:7 [0] NCCL INFO 1073741824 Bytes -> Algo 1 proto 2 time 99.5\n"
    one = preamble(8, "a", "all_reduce_perf") + HEAD + rows(GIB) + END
    assert {row.algorithm for row in read(choice + one).measurements} == {"ring"}
    other = preamble(8, "a", "broadcast_perf") + HEAD + rows(GIB, factor=1) + END
    assert {row.algorithm for row in read(choice + one + other).measurements} == {None}


TORN_HEAD = """\
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


def read_torn(text: str) -> Log:
    return parse_log((TORN_HEAD + text).encode(), file="x", collective=Collective.ALL_REDUCE)


@pytest.mark.parametrize("prefix", ["", "[0] ", "2024-11-08T17:00:00.123Z "])
def test_torn_rows_are_joined_and_get_their_choice(prefix: str) -> None:
    lines = [f"{prefix}{line}" for line in TORN_HEAD.splitlines()]
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
        log = read_torn(f"{whole[:at]}{choice(9)}\n{whole[at:]}\n{''.join(row(1 << 21))}\n")
        assert {each.time_us for each in log.measurements} <= {75.25, 50.0}
        assert {each.size_bytes for each in log.measurements} <= {1 << 20, 1 << 21}
        joined += len(log.measurements) == 4
        assert len(log.measurements) == 4 or log.warnings
    assert joined > len(whole) // 2


def test_a_row_whose_end_is_lost_is_counted_and_spoils_no_other_row() -> None:
    first, second = row(1 << 20, 80.0), row(1 << 21, 50.0)
    text = f"{first[0]}{choice(1)}\n{second[0]}{choice(2)}\n{first[1]}{first[2]}\n{second[1]}{second[2]}\n"
    log = read_torn(text)
    assert [each.time_us for each in log.measurements] == []
    (words,) = [words for words in log.warnings if "rows" in words]
    assert "x:8" in words
    assert "not read" in words


def test_pieces_of_mixed_runs_are_not_joined_by_guess() -> None:
    """With the rows of two runs, small sizes whose bandwidths are all 0.00 cannot tell whose a piece is."""
    devices = "#  Rank  0 Group  0 Pid   9 on       vm-b device  0 [0x0f] NVIDIA H100 80GB HBM3\n"
    keys, first, second = row(8)
    log = parse_log(
        (devices + TORN_HEAD + f"{keys}{choice(8)}\n{first}{second}\n{''.join(row(1 << 20))}\n").encode(),
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
        log = read_torn("\n".join(lines) + "\n")
        assert {(each.size_bytes, each.time_us) for each in log.measurements} <= known
        assert len(log.measurements) == 16 or any("not read" in words for words in log.warnings) or lost


def test_a_count_that_does_not_fit_the_size_is_no_row() -> None:
    """The beginning of a size that was torn off shows at once where bandwidths are too small to tell."""
    keys, first, second = row(1 << 10, 40.0)
    whole = f"{keys}{first}{second}"
    at = whole.index("24")  # "10" stays before
    log = read_torn(f"{whole[:at]}{choice(9)}\n{whole[at:]}\n")
    assert {each.size_bytes for each in log.measurements} <= {1024}
    headless = read_torn(f"99 {whole[at:]}\n{whole}\n")
    assert {each.size_bytes for each in headless.measurements} == {1024}
    assert any("its figures do not fit the columns" in words for words in headless.warnings)
