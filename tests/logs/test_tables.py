"""Tables are read by their header: every version, fork and option of nccl-tests, and columns that others put before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.columns import groups_of, header_of
from coppice.logs.reading import parse_log
from coppice.logs.records import Log

OF_2018 = """\
#                                             out-of-place                       in-place          
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
     1048576         65536   float    60.00   17.48   13.11    N/A    55.00   19.07   14.30  0e+00
"""  # noqa: W291 (as printed)
REDUCED_OF_2018 = """\
#                                                     out-of-place                       in-place          
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
     1048576        262144   float     sum    60.00   17.48   26.21  2e-07    55.00   19.07   28.60  2e-07
"""  # noqa: W291
ROOTED_OF_2018 = REDUCED_OF_2018.replace("redop", " root").replace("  sum", "    0")
MILLISECONDS = """\
#                                           out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
    10000000       2500000   float     sum    1.266   7.90  11.85    0e+00    1.250   8.00  12.00      N/A
"""
OF_2023 = """\
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
     1048576        262144     float     sum      -1    60.00   17.48   26.21      0    55.00   19.07   28.60    N/A
"""  # noqa: W291
SWAPPED = OF_2023.replace(
    "out-of-place                       in-place    ", "in-place                       out-of-place"
)
ONE_HALF = """\
#                                                      in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       
     1048576        262144     float     sum      -1    55.00   19.07   28.60      0
"""  # noqa: W291
MSCCLPP = """\
# Initializing MSCCL++
#                                        in-place                       out-of-place
#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)     (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144    55.00   19.07   28.60      0
     2097152        524288                                      60.00   34.95   52.43      0
     4194304       1048576                                      99.00   42.37   63.55
"""
DETAILED = """\
#                                                              out-of-place (+ per-iteration)                                in-place (+ per-iteration)
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)   %Y-%m-%d %H:%M:%S
     1048576        262144     float     sum      -1    60.00   17.48   26.21       0    58.00    64.00    63.00     2.50    55.00   19.07   28.60       0    54.00    57.00    56.00     1.50  2026-01-02 03:04:05
"""  # noqa: E501
SIDE = """\
#                                                              out-of-place                              in-place
#       size         count      type   redop    root     time   algbw   busbw  sidebw #wrong     time   algbw   busbw  sidebw #wrong
     1048576        262144     float     sum      -1    60.00   17.48   26.21   99.00      3    55.00   19.07   28.60   98.00      0
"""  # noqa: E501


def read(text: str, collective: Collective = Collective.ALL_REDUCE) -> Log:
    return parse_log(text.encode(), file="x", collective=collective)


def times(log: Log) -> dict[tuple[int, bool | None], float]:
    return {(row.size_bytes, row.in_place): row.time_us for row in log.measurements}


BOTH = {(1 << 20, False): 60.0, (1 << 20, True): 55.0}


@pytest.mark.parametrize(
    "text",
    [OF_2018, REDUCED_OF_2018, ROOTED_OF_2018, OF_2023, DETAILED, SIDE],
    ids=["11", "12", "12r", "13", "21", "15"],
)
def test_columns_of_all_versions(text: str) -> None:
    log = read(text)
    assert times(log) == BOTH
    assert {row.type for row in log.measurements} == {"float"}
    assert log.warnings in ((), ("x: 3 wrong values",))


@pytest.mark.parametrize("text", [OF_2018, REDUCED_OF_2018, ROOTED_OF_2018, OF_2023])
def test_without_a_header_the_usual_columns_are_taken(text: str) -> None:
    rows = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    assert times(read(rows)) == BOTH


def test_which_half_is_in_place_is_read_not_counted() -> None:
    assert groups_of(SWAPPED.splitlines()[0]) == (True, False)
    assert times(read(SWAPPED)) == {(1 << 20, True): 60.0, (1 << 20, False): 55.0}
    assert times(read(ONE_HALF)) == {(1 << 20, True): 55.0}
    nameless = "\n".join(ONE_HALF.splitlines()[1:])
    assert times(read(nameless)) == {(1 << 20, None): 55.0}


def test_blank_halves_are_told_by_where_cells_stand() -> None:
    log = read(MSCCLPP)
    assert log.kind == "table of mscclpp-test"
    assert times(log) == {(1 << 20, True): 55.0, (1 << 21, False): 60.0, (1 << 22, False): 99.0}
    assert [row.wrong for row in log.measurements] == [0, 0, None]


def test_units_and_errors() -> None:
    log = read(MILLISECONDS)
    assert times(log) == {(10**7, False): 1266.0, (10**7, True): 1250.0}
    assert log.warnings == ()
    # a largest error is no number of wrong values
    assert [row.wrong for row in read(REDUCED_OF_2018).measurements] == [None, None]
    seconds = OF_2023.replace("(us)", " (s)").replace("60.00", "60e-6").replace("55.00", "55e-6")
    assert times(read(seconds)) == {key: pytest.approx(value) for key, value in BOTH.items()}


def test_what_was_not_run_is_no_measurement() -> None:
    log = read(OF_2023.replace("  55.00   19.07   28.60    N/A", "    N/A     N/A     N/A    N/A"))
    assert times(log) == {(1 << 20, False): 60.0}


def test_iterations_and_time_stamps() -> None:
    first, second = read(DETAILED).measurements
    assert first.iterations is not None
    assert second.iterations is not None
    assert (first.iterations.least_us, first.iterations.most_us, first.iterations.p99_us) == (
        58.0,
        64.0,
        63.0,
    )
    assert second.iterations.variation_percent == 1.5


def leading(title: str, *cells: str) -> str:
    """The table with a column before its own."""
    head, names, units, row = OF_2023.splitlines()
    width = 10
    lines = [f"{line[0]}{' ' * width}{line[1:]}" for line in (head, units)]
    names = f"#{title:>{width}}{names[1:]}"
    rows = [f"{cell:>{width}} {row}" for cell in cells]
    return "\n".join([lines[0], names, lines[1], *rows, ""])


def test_columns_before_the_size() -> None:
    assert times(read(leading("node", "n1"))) == BOTH
    assert "columns node are not known" in read(leading("node", "n1")).warnings[0]
    found = read(leading("nodes", "2", "4"))
    assert [row.nodes for row in found.measurements] == [2, 2, 4, 4]
    assert times(found) == BOTH
    found = read(leading("ranks", "4"))
    assert [row.ranks for row in found.measurements] == [4, 4]
    assert found.warnings == ()
    (words,) = read(leading("ranks", "8")).warnings
    assert (
        "busbw is 1.5 times algbw, as on 4 ranks, where all_reduce on 8 ranks has 1.75 times" in words
        or "1.4" in words
    )


@pytest.mark.parametrize("cell", ["n1", "7", "rack2/n1"])
def test_a_cell_that_the_header_does_not_name(cell: str) -> None:
    head, names, units, row = OF_2023.splitlines()
    log = read("\n".join([head, names, units, f"{cell} {row}"]))
    assert times(log) == BOTH
    assert log.warnings == (
        "x: what stands before the first column of 1 row, which no header names, is left out",
    )


def test_rows_alone_after_what_nobody_knows() -> None:
    log = read(f"my own thing; {OF_2023.splitlines()[-1].strip()}\n" * 2)
    assert times(log) == BOTH
    assert "before the first column of 2 rows" in log.warnings[0]


@pytest.mark.parametrize("at", [60, 66, 72, 80, 90])
def test_wrapped_rows(at: int) -> None:
    """The other half on the next line; the figures confirm that it is the same row's."""
    head, names, units, row = OF_2023.splitlines()
    log = read("\n".join([head, names, units, row[:at], row[at:], ""]))
    found = times(log)
    assert found.items() <= BOTH.items()
    assert found == BOTH or any("not read" in words for words in log.warnings)
    assert found == BOTH or at not in (80,)


def test_wrong_values_with_a_mark() -> None:
    log = read(OF_2023.replace("26.21      0", "26.21     3*"))
    assert [row.wrong for row in log.measurements] == [3, None]


def test_what_a_program_says_that_it_ran_is_not_overruled() -> None:
    log = read("# Collective test starting: sendrecv_perf\n" + OF_2023)
    assert log.measurements == ()
    assert log.warnings == ("x: left out: 1 row of sendrecv_perf, which runs no known collective",)


def test_cells_that_fit_no_header_are_counted() -> None:
    log = read(
        OF_2023
        + "     2097152        524288     float     sum      -1    60.00   17.48   26.21      0    55.00\n"
    )
    assert times(log) == BOTH
    (words,) = log.warnings
    assert words.startswith(
        "1 line looks like a row and is not read, such as x:5 ('2097152 524288 float sum -1"
    )
    with pytest.raises(InputError, match="14 cells under 13 columns"):
        read(OF_2023.replace("   60.00", "   1  60.00"))


def test_figures_that_contradict_their_columns_are_doubted() -> None:
    log = read(OF_2023.replace(" 17.48", " 71.48"))
    assert times(log) == BOTH
    assert any(
        "in 1 of 2 measurements size / time is not algbw, such as in line 4" in each for each in log.warnings
    )


def test_names_may_lack_their_hash_and_carry_units() -> None:
    text = OF_2023.replace("#       size", "        size").replace(" time ", " time(us) ")
    assert times(read(text)) == BOTH
    assert header_of("size of a thing and time of another", (), line=1) is None


@given(
    keys=st.permutations(["type", "redop", "root"]),
    half=st.permutations(["time", "algbw", "busbw", "#wrong"]),
    swapped=st.booleans(),
)
def test_any_order_of_columns(keys: list[str], half: list[str], swapped: bool) -> None:
    """A time begins its half; what else stands where, the header says."""
    half = ["time", *(name for name in half if name != "time")]
    cells = {"size": "1048576", "count": "262144", "type": "float", "redop": "sum", "root": "-1"}
    runs = [
        {"time": f"{time}", "algbw": f"{1048.576 / time:.2f}", "busbw": "0.00", "#wrong": "0"}
        for time in (60, 55)
    ]
    titles = ["size", "count", "type", *(key for key in keys if key != "type"), *half, *half]
    words = (
        [cells[name] for name in titles[:5]]
        + [runs[0][name] for name in half]
        + [runs[1][name] for name in half]
    )
    places = ("in-place", "out-of-place") if swapped else ("out-of-place", "in-place")
    text = "\n".join(
        [
            "# " + (" " * 60) + (" " * 20).join(places),
            "# " + " ".join(f"{title:>10}" for title in titles),
            "  " + " ".join(f"{word:>10}" for word in words),
        ]
    )
    assert times(read(text)) == {(1 << 20, swapped): 60.0, (1 << 20, not swapped): 55.0}


@pytest.mark.parametrize("mark", ["|", ",", ";", "\t"])
def test_cells_between_marks(mark: str) -> None:
    """Tables as people paste them into reports and sheets; an empty cell has no value."""
    names = ["size (B)", "count", "type", "redop", "root", *(["time (us)", "algbw", "busbw", "#wrong"] * 2)]
    cells = [
        *("1048576", "262144", "float", "sum", "-1", "60.00", "17.48", "26.21", "0", "55.00", "19.07"),
        *("28.60", "N/A"),
    ]
    lines = [mark.join(names), mark.join(cells)]
    text = "\n".join(f"{mark}{line}{mark}" if mark == "|" else line for line in lines)
    assert times(read(text)) == BOTH
    if mark != "\t":
        blank = mark.join(
            ["2097152", "524288", "float", "sum", "-1", *([""] * 4), "55.00", "38.13", "57.20", "0"]
        )
        assert times(read(f"{text}\n{blank}\n")) == BOTH | {(1 << 21, True): 55.0}


def test_output_that_powershell_redirected() -> None:
    log = parse_log(
        OF_2023.replace("\n", "\r\n").encode("utf-16"), file="x", collective=Collective.ALL_REDUCE
    )
    assert times(log) == BOTH


BENCH = """\
#       size     count    type  redop root            algorithm   time    min    max   algbw   busbw #wrong
#        (B)(elements)                                            (us)   (us)   (us)  (GB/s)  (GB/s)
     1048576    262144 float32    sum   -1               native   60.0   55.0   70.0  17.476  26.214      0
     1048576    262144 float32    sum   -1               forest   50.0   49.0   55.0  20.972  31.457      0
"""


def test_table_of_our_own_benchmark() -> None:
    """Of what `coppice bench` prints, the times of the library count."""
    log = read(BENCH)
    assert times(log) == {(1 << 20, None): 60.0}
    (words,) = log.warnings
    assert words.startswith("x: left out: 1 row of algorithms of Coppice (forest)")
