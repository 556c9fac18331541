"""Several runs in one file: after each other, mixed without MPI, or on streams of their own; each with its ranks."""

from __future__ import annotations

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
