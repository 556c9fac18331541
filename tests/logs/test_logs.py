"""What programs print, as typed records, with the line of whatever cannot be read."""

from __future__ import annotations

import pytest

from coppice.errors import InputError
from coppice.logs.lines import log_lines
from coppice.logs.nccl_tests import NoRowsError, read_nccl_tests


def row(size: int, count: int, *halves: tuple[str, str, str, str]) -> str:
    """A row as nccl-tests formats it."""
    text = f"{size:12d}  {count:12d}  {'float':>8}  {'sum':>6}  {'-1':>6}"
    return text + "".join(f"  {t:>7}  {a:>6}  {b:>6}  {w:>6}" for t, a, b, w in halves) + "\n"


HEAD = """\
srun: job 7 queued
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node7 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4712 on      node7 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
"""
TAIL = "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 125.07 \n#\n"


def test_table() -> None:
    text = (
        HEAD
        + row(1024, 256, ("10.25", "0.10", "0.10", "0"), ("9.93", "0.10", "0.10", "N/A"))
        + "node7:4711:4711 [0] NCCL INFO AllReduce: opCount 1\n"
        + row(1 << 33, 1 << 31, ("4.0e+04", "214", "214", "2"), ("40000", "214.7", "214.7", "1"))
        + TAIL
    )
    (table,) = read_nccl_tests(log_lines(text), file="log")
    (devices,) = table.devices
    assert [device.bus_id for device in devices] == ["0000:1b:00", "0000:43:00"]
    assert (devices[1].rank, devices[1].pid, devices[1].host) == (1, 4712, "node7")
    assert devices[0].name == "NVIDIA H100 80GB HBM3"
    assert (table.wrong, table.avg_busbw_gb_per_s) == (3, 125.07)
    first, second = table.rows
    assert (first.size_bytes, first.count, first.type, first.redop, first.root) == (
        1024,
        256,
        "float",
        "sum",
        -1,
    )
    assert (first.line, second.line) == (11, 13)
    assert (first.out_of_place.time_us, first.out_of_place.wrong, first.in_place.wrong) == (10.25, 0, None)
    assert (second.out_of_place.time_us, second.out_of_place.wrong) == (40000.0, 2)
    assert (second.in_place.algbw_gb_per_s, second.in_place.busbw_gb_per_s) == (214.7, 214.7)


GOOD = ("1", "1", "1", "0")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "8 2 float sum -1 1 1 1 0\n",
            "1 line looks like a row and is not read, such as log:11 .*it is cut off",
        ),
        (row(8, 2, ("x", "1", "1", "0"), GOOD), "time as a number of 0 or more at log:11"),
        (row(8, 2, GOOD, ("1", "-1", "1", "0")), "algbw as a number"),
        (row(8, 2, GOOD, ("1", "1", "nan", "0")), "busbw as a number"),
        (row(8, 2, GOOD, ("1", "1", "1", "?")), "#wrong as a number"),
        (row(8, 2, GOOD, GOOD).replace("-1", "-2"), "a root of -1 or more at log:11"),
    ],
)
def test_bad_rows(line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_nccl_tests(log_lines(HEAD + line), file="log")


def test_no_rows() -> None:
    (table,) = read_nccl_tests(log_lines(row(8, 2, GOOD, GOOD)), file="log")
    assert table.wrong is None
    with pytest.raises(NoRowsError, match="log holds no row"):
        read_nccl_tests(log_lines(HEAD + TAIL), file="log")
