"""Whatever a launcher, a collector, a mail or a debugger puts before and between lines, the readers see one log."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.logs.lines import log_lines
from coppice.logs.reading import parse_log
from coppice.logs.records import Log

LOG = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 32 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid     21 on   worker-0 device  0 [0x1e] Tesla T4
#  Rank  1 Group  0 Pid     22 on   worker-1 device  0 [0x1e] Tesla T4
worker-0:21:21 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.10<0>
NCCL version 2.21.5+cuda12.5
worker-0:21:40 [0] NCCL INFO comm 0x55c1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
worker-1:22:41 [0] NCCL INFO comm 0x55c2 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
           8             2     float     sum      -1    136.3   0.00   0.00      0    70.85   0.00   0.00      0
          16             4     float     sum      -1    69.29   0.00   0.00      0    68.67   0.00   0.00      0
          32             8     float     sum      -1    69.08   0.00   0.00      0    69.13   0.00   0.00      0
worker-1:22:22 [0] NCCL INFO comm 0x55c2 rank 1 nranks 2 cudaDev 0 busId 1e0 - Destroy COMPLETE
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 92.3405 
#
"""  # noqa: W291 (as printed)
TIMES = [136.3, 70.85, 69.29, 68.67, 69.08, 69.13]
ROWS = "".join(line for line in LOG.splitlines(keepends=True) if line.strip()[:1].isdigit())

PREFIXES: dict[str, Callable[[int], str]] = {
    "nothing": lambda _: "",
    "Open MPI": lambda _: "[1,0]<stdout>:",
    "Open MPI with times": lambda at: f"Fri Nov  8 17:00:{at:02d} 2024[1,0]<stdout>:",
    "Open MPI 5": lambda _: "[prterun-n1-1234@1,0]<stdout>: ",
    "Open MPI in detail": lambda _: "[1,0][n1:1234]<stdout>: ",
    "srun --label": lambda _: " 0: ",
    "torchrun": lambda _: "[default0]:",
    "kubectl --prefix": lambda _: "[pod/launcher-x7/main] ",
    "docker compose": lambda _: "launcher-1  | ",
    "MPICH": lambda _: "[0] ",
    "mail": lambda _: "> ",
    "mail of mail": lambda _: ">> ",
    "ISO times": lambda at: f"2024-11-08T17:00:{at:02d}.{at:03d}Z ",
    "ISO times and a tag": lambda at: f"2024-11-08T17:00:{at:02d}.{at:03d}+00:00 [1,0]<stdout>:",
    "container runtime": lambda at: f"2024-11-08T17:00:{at:02d}.{at:09d}Z stdout F ",
    "times on lines of their own": lambda at: f"2024-11-08T17:00:{at:02d}.{at:03d}Z\n",
    "colours": lambda _: "\x1b[36mlauncher-1  |\x1b[0m ",
    "a debugger": lambda _: "[New Thread 0x7fff7bfff000 (LWP 31021)]\n",
    "syslog": lambda at: f"Nov {8 + at // 10:2d} 17:00:{at:02d} n1 all_reduce[123]: ",
    "logging of Python": lambda at: f"2024-11-08 17:00:{at:02d},{at:03d} - runner - INFO - ",
    "Ray": lambda _: "(run pid=1234, ip=192.0.2.1) ",
    "pdsh": lambda _: "node-1: ",
    "grep -n": lambda at: f"run.log:{at + 1}:",
    "an indent": lambda _: "    ",
    "what nobody knows": lambda at: f"<<job 7 of me; {at}>> ",
}


def check(log: Log) -> None:
    assert [row.time_us for row in log.measurements] == TIMES
    assert {(row.ranks, row.nodes) for row in log.measurements} == {(2, 2)}
    assert [row.in_place for row in log.measurements] == [False, True] * 3
    assert (log.version, len(log.communicators), log.warnings) == ("2.21.5", 1, ())


@pytest.mark.parametrize("kind", PREFIXES)
def test_prefixes_hide_nothing(kind: str) -> None:
    text = "".join(PREFIXES[kind](at) + line for at, line in enumerate(LOG.splitlines(keepends=True)))
    check(parse_log(text.encode(), file="x", collective=Collective.ALL_REDUCE))
    check(parse_log(text.replace("\n", "\r\n").encode(), file="x", collective=Collective.ALL_REDUCE))


@pytest.mark.parametrize("kind", ["nothing", "Open MPI", "mail", "srun --label", "ISO times", "MPICH"])
def test_rows_without_a_header_are_freed_by_the_form_of_the_prefix(kind: str) -> None:
    text = "".join(PREFIXES[kind](at) + line for at, line in enumerate(ROWS.splitlines(keepends=True)))
    log = parse_log(text.encode(), file="x", collective=Collective.ALL_REDUCE)
    assert [row.time_us for row in log.measurements] == TIMES


@given(
    prefix=st.text(st.sampled_from("abzAZ019 .:/|<>()[]{}@,;=_-"), min_size=1, max_size=30).filter(
        lambda text: not text.isspace() and "#" not in text
    )
)
def test_any_prefix_of_all_lines_is_learned(prefix: str) -> None:
    text = "".join(prefix + line for line in LOG.splitlines(keepends=True))
    log = parse_log(text.encode(), file="x", collective=Collective.ALL_REDUCE)
    assert [row.time_us for row in log.measurements] == TIMES


def test_blank_space_of_rows_stays() -> None:
    lines = log_lines("".join(f"[1,0]<stdout>: {line}" for line in LOG.splitlines(keepends=True)))
    assert "\n".join(line.text for line in lines) == LOG
    assert {line.stream for line in lines if line.text} == {"[1,0]<stdout>:"}


def test_lines_inside_of_lines_are_separated() -> None:
    text = "worker-0:1:1 [0] NCCL INFO a\n  8  2 float sum -1[0] 3worker-0:1:1 [0] NCCL INFO b\n"
    # the host is known from the first line, so that the digit before it belongs to the row
    assert [(line.number, line.text, line.cut) for line in log_lines(text)][1:3] == [
        (2, "  8  2 float sum -1[0] 3", True),
        (2, "worker-0:1:1 [0] NCCL INFO b", False),
    ]


def test_lines_that_look_like_rows_are_counted_where_they_are_not_read() -> None:
    text = LOG + "".join(
        f"strange {at} of mine: {line}" for at, line in enumerate(ROWS.splitlines(keepends=True))
    )
    log = parse_log(text.encode(), file="x", collective=Collective.ALL_REDUCE)
    assert len(log.measurements) == 6
    (words,) = log.warnings
    assert words.startswith(
        "3 lines look like rows and are not read, such as x:21 ('strange 0 of mine: 8 2 float sum"
    )


@pytest.mark.parametrize(
    "noise",
    [
        "[New Thread a",
        "[New Thread 0x7f (LWP 3)]",
        "#  Rank 0 ",
        " ",
        "1 ",
        "[1]",
        "> ",
        "a:",
        "| ",
        "\x1b[1m",
        "17:00:00 ",
    ],
)
def test_long_lines_of_noise_are_read_in_time(noise: str) -> None:
    """Also where a pattern begins again and again; a minute would be a hang."""
    text = LOG.replace(
        "# Out of bounds", f"{noise * 20_000}\n{noise * 20_000}worker-0:1:1 [0] NCCL INFO a\n# Out of bounds"
    )
    before = time.monotonic()
    log = parse_log(text.encode(), file="x", collective=Collective.ALL_REDUCE)
    assert [row.time_us for row in log.measurements] == TIMES
    assert time.monotonic() - before < 60
