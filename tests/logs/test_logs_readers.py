"""Logs, JSON files and dumps as typed records; joined where they belong together; damaged ones never a traceback."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from coppice.cli.logs import read as command
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.lines import log_lines
from coppice.logs.nccl_tests import NoRowsError, read_nccl_tests
from coppice.logs.reading import parse_log, read_log, read_logs
from coppice.logs.records import LoggedMeasurement
from support.paths import ROOT
from support.shared_data import SHARED, needs_shared

RULE = " 25.2/  11.3 |    48.5/   0.0 |    92.4/ 220.8 |    36.2/  12.0 |    75.2/ 235.5 |   131.6/ 256.0 |"
LOG = f"""\
srun: job 7 queued
n1:100:100 [0] NCCL INFO NCCL_DEBUG set by environment to INFO
n1:100:100 [0] NCCL INFO NCCL version 2.27.7+cuda12.9
n1:100:110 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so
n1:100:110 [0] NCCL INFO comm 0xd0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n1:101:111 [1] NCCL INFO comm 0xd1 rank 1 nRanks 16 nNodes 2 localRanks 8 localRank 1 MNNVL 0
n1:100:110 [0] NCCL INFO   Algorithm   |                  Tree                  |                  Ring          |
n1:100:110 [0] NCCL INFO   Protocol    |   LL |  LL128 |  Simple |   LL |  LL128 |  Simple |
n1:100:110 [0] NCCL INFO  Max NThreads |  512 |    640 |     512 |  512 |    640 |     256 |
n1:100:110 [0] NCCL INFO     AllReduce |   {RULE}
n1:101:111 [1] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 per peer
n1:100:110 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 per peer
"""
CHOICES = """\
n1:100:100 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
n1:100:100 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15} cgaClusterSize 4
n1:100:100 [0] NCCL INFO AllGather:131072 Bytes -> Algo PAT   proto SIMPLE channel{Lo..Hi}={0..1}
n1:100:100 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 16
n1:100:100 [0] NCCL INFO Send: opCount 4 sendbuff 0x7 recvbuff (nil) count 8 datatype 9 op 0 root 3 comm 0xd0
n1:100:100 [0] NCCL INFO AllReduce: opCount 5 sendbuff 0x7 recvbuff 0x8 count 8 datatype 9 op 0 root 0 comm 0xd0
"""
ROWS = """\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid    100 on         n1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
     1048576        262144     float     sum      -1    75.25  13.93   26.12       0    74.00  14.17   26.57       2
     2097152        524288     float     sum      -1    99.00  21.18   39.72       0    98.00  21.40   40.12     N/A
"""


def test_log_of_the_library() -> None:
    log = parse_log((LOG + CHOICES).encode(), file="log")
    assert (log.kind, log.version, log.tuner, log.forced) == ("log of NCCL", "2.27.7", "", False)
    assert log.warnings == ()
    (communicator,) = log.communicators
    assert (communicator.ranks, communicator.nodes, communicator.channels, communicator.line) == (
        16,
        2,
        24,
        5,
    )
    assert [(c.algorithm, c.protocol, c.latency_us, c.gb_per_s) for c in communicator.cells] == [
        ("tree", "ll", 25.2, 11.3),
        ("tree", "ll128", 48.5, 0.0),
        ("tree", "simple", 92.4, 220.8),
        ("ring", "ll", 36.2, 12.0),
        ("ring", "ll128", 75.2, 235.5),
        ("ring", "simple", 131.6, 256.0),
    ]
    reduce, gather = log.decisions
    assert (reduce.collective, reduce.size_bytes, reduce.ranks, reduce.calls) == (
        "all_reduce",
        1 << 20,
        16,
        2,
    )
    assert (reduce.algorithm, reduce.protocol, reduce.channels, reduce.line) == ("ring", "ll128", 16, 13)
    assert (gather.algorithm, gather.protocol, gather.channels) == ("pat", "simple", 2)
    assert (gather.rank_bytes, gather.size_bytes) == (131072, 16 * 131072)
    assert log.beside == {"AllReduce by symmetric": 1, "Send": 1}


def test_rows_get_the_choice_of_the_library() -> None:
    """By count, not by size; a size at which the log shows no choice, or two of them, gets none."""
    log = parse_log((LOG + ROWS + CHOICES).encode(), file="log")
    assert log.kind == "table of nccl-tests and log of NCCL"
    first, second, third, fourth = log.measurements
    assert (first.ranks, first.nodes, first.size_bytes, first.time_us) == (16, 2, 1 << 20, 75.25)
    assert (first.algorithm, first.protocol, first.channels) == ("ring", "ll128", 16)
    assert (first.in_place, first.wrong, second.in_place, second.wrong) == (False, 0, True, 2)
    assert (first.type, first.line, second.line, first.forced) == ("float", 15, 15, False)
    assert (third.algorithm, third.channels, fourth.wrong) == (None, None, None)
    assert log.warnings == ("log: 2 wrong values",)
    other = CHOICES.replace("LL128 channel{Lo..Hi}={0..15} cga", "SIMPLE channel{Lo..Hi}={0..15} cga")
    assert parse_log((LOG + ROWS + other).encode(), file="log").measurements[0].algorithm is None
    gather = ROWS.replace("all_reduce", "all_gather").replace("262144 ", "32768 ")
    (row, *_) = parse_log((LOG + gather + CHOICES).encode(), file="log").measurements
    assert (row.collective, row.algorithm) == ("all_gather", "pat")


def test_environment_tells_what_ran() -> None:
    def first(*settings: str) -> LoggedMeasurement:
        lines = "".join(f"n1:1:1 [0] NCCL INFO {text}\n" for text in settings)
        return parse_log((lines + ROWS).encode(), file="log").measurements[0]

    found = first(
        "NCCL_ALGO set by environment to allreduce:NVLSTree",
        "NCCL_PROTO set by environment to Simple",
        "NCCL_MIN_CTAS set by environment to 8.",
        "NCCL_MAX_CTAS set by environment to 8.",
    )
    assert (found.algorithm, found.protocol, found.channels, found.forced) == ("nvls_tree", "simple", 8, True)
    found = first("NCCL_ALGO set by environment to Ring,Tree", "NCCL_MAX_CTAS set by environment to 8")
    assert (found.algorithm, found.channels, found.forced) == (None, None, True)
    assert first().forced is None
    assert first("NCCL_ALGO set by environment to allgather:Ring").algorithm is None


def test_old_logs() -> None:
    text = (
        "n:1:2 [0] NCCL INFO Latency/AlgBw |    Tree/    LL |    Ring/Simple |\n"
        "n:1:2 [0] NCCL INFO     Broadcast |     5.5/   3.0 |    12.0/  24.0 |\n"
        "n:1:1 [0] NCCL INFO 1048576 Bytes -> Algo 1 proto 2 time 123.4\n"
    )
    log = parse_log(text.encode(), file="log")
    assert [(c.algorithm, c.protocol) for c in log.communicators[0].cells] == [
        ("tree", "ll"),
        ("ring", "simple"),
    ]
    (choice,) = log.decisions
    assert (choice.collective, choice.algorithm, choice.protocol, choice.time_us) == (
        None,
        "ring",
        "simple",
        123.4,
    )
    assert choice.size_bytes == 1048576


PAT = """\
n1:100:110 [0] NCCL INFO   Algorithm   |                            PAT                   |
n1:100:110 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |             LL |          \
LL128 |         Simple |             LL |          LL128 |         Simple |
n1:100:110 [0] NCCL INFO  Max NThreads |            512 |            640 |            512 |
n1:100:110 [0] NCCL INFO     AllGather |    0.0/   0.0 |    0.0/   0.0 |   30.5/  45.0 |
n1:100:110 [0] NCCL INFO ReduceScatter |    0.0/   0.0 |    0.0/   0.0 |   31.5/  44.0 |
"""


def test_a_block_of_the_cost_model_with_one_algorithm() -> None:
    """NCCL prints nine protocols above the three cells of PAT."""
    log = parse_log((LOG + PAT).encode(), file="log")
    assert log.warnings == ()
    (communicator,) = log.communicators
    cells = {
        (str(c.collective), c.algorithm, c.protocol): (c.latency_us, c.gb_per_s) for c in communicator.cells
    }
    assert len(cells) == 12
    assert cells["all_gather", "pat", "simple"] == (30.5, 45.0)
    assert cells["reduce_scatter", "pat", "ll128"] == (0.0, 0.0)
    assert cells["all_reduce", "ring", "simple"] == (131.6, 256.0)


def test_communicators_are_told_apart() -> None:
    """A process with groups of two shapes: a choice names the communicator, or gets no shape."""
    shapes = (
        "n:1:5 [0] NCCL INFO comm 0xa rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n"
        "n:1:5 [0] NCCL INFO comm 0xb rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0\n"
    )
    line = "n:1:1 [0] NCCL INFO AllGather: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"
    log = parse_log(f"{shapes}{line}\n{line} comm 0xb\n".encode(), file="log")
    assert [(each.ranks, each.size_bytes) for each in log.decisions] == [(None, None), (8, 512)]


@pytest.mark.parametrize(
    "line",
    [
        "AllReduce: 12x Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
        "AllReduce: 64 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={9..2}",
        "    AllReduce |    25.2/  11.3 |    48.5/",
        "  Protocol    |   LL |  LL128 |",
        "    AllReduce |    25.2/x |    48.5/   0.0 |    92.4/ 220.8 |  1.0/ 1.0 |  1.0/ 1.0 |  1.0/ 1.0 |",
    ],
)
def test_torn_lines_become_warnings(line: str) -> None:
    log = parse_log(f"{LOG}n1:100:110 [0] NCCL INFO {line}\n{CHOICES}".encode(), file="log")
    assert [warning.split(" begins")[0] for warning in log.warnings] == ["log:13"]
    assert len(log.decisions) == 2


def test_rows_of_other_forms() -> None:
    detailed = "1024 256 float sum -1  10 1 1 0 9 11 11 1.5  8 1 1 0 7 9 9 2.5"
    alone = f"1024 256 float sum -1 {' ' * 32} 9.5 1 1 0"
    stamped = "1024 256 float none 0  10 1 1 0  8 1 1 0  2026-01-02 03:04:05"
    for row, times in ((detailed, [10, 8]), (alone, [9.5]), (stamped, [10, 8])):
        log = parse_log(f"# Collective test starting: reduce_perf\n{row}\n".encode(), file="log")
        assert [each.time_us for each in log.measurements] == times
        assert log.measurements[-1].in_place
        assert log.measurements[0].collective is Collective.REDUCE


def test_who_says_what_was_run(tmp_path: Path) -> None:
    rows = ROWS.partition("\n")[2].encode()
    with pytest.raises(
        InputError, match=r"log does not say which collective was run: give it \(`collective="
    ):
        parse_log(rows, file="log")
    assert (
        parse_log(rows, file="log", collective=Collective.BROADCAST).measurements[0].collective == "broadcast"
    )
    log = parse_log(ROWS.replace("all_reduce_perf", "sendrecv_perf").encode(), file="log")
    assert log.measurements == ()
    assert log.warnings == ("log: left out: 2 rows of sendrecv_perf, which runs no known collective",)
    with pytest.raises(InputError, match="cannot read"):
        read_log(tmp_path / "none")


def json_file(**changes: Any) -> dict[str, Any]:
    """A file as nccl-tests 2.19 writes it with -J."""
    run = {"time": 75.25, "alg_bw": 13.9, "bus_bw": 26.1, "nwrong": 0.0}
    devices = [
        {"rank": rank, "group": 0, "pid": 7 + rank, "hostname": f"n{rank // 2}", "device": rank % 2}
        | {"device_hex": "0000:1b:00", "device_info": "NVIDIA H100"}
        for rank in range(4)
    ]
    return {
        "version": 2,
        "start_time": "2026-01-02 03:04:05",
        "args": ["./build/reduce_scatter_perf", "-J", "x.json"],
        "env": ["HOME=/root", "NCCL_ALGO=Ring", "NCCL_PROTO=LL", "SECRET=1"],
        "nccl_version": 22707,
        "config": {"nthreads": 1, "devices": devices},
        "results": [
            {"size": 4096, "count": 256, "type": "float", "redop": "sum", "root": "    -1"}
            | {"out_of_place": run, "in_place": run | {"time": 70.0, "nwrong": None}, "actual_iterations": 20}
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 26.1, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-01-02 03:05:05",
    } | changes


def test_json_of_nccl_tests() -> None:
    log = parse_log(json.dumps(json_file()).encode(), file="x.json")
    assert (log.kind, log.version) == ("table of nccl-tests", "2.27.7")
    assert log.settings == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    first, second = log.measurements
    assert (first.collective, first.ranks, first.nodes, first.size_bytes) == ("reduce_scatter", 4, 2, 4096)
    assert (first.algorithm, first.protocol, first.forced, first.line) == ("ring", "ll", True, 1)
    assert (first.time_us, first.wrong, second.time_us, second.wrong) == (75.25, 0, 70.0, None)
    result = json_file()["results"][0]
    only_in_place = result | {
        "out_of_place": None,
        "in_place": {"cpu_time": 5, "alg_bw": 1, "bus_bw": 1, "nwrong": 0},
    }
    (row,) = parse_log(json.dumps(json_file(results=[only_in_place])).encode(), file="x").measurements
    assert (row.in_place, row.time_us) == (True, 5.0)


def test_iterations_in_the_json_of_nccl_tests() -> None:
    per_iteration = {
        "skipped_iterations": 1, "min_us": 70.0, "max_us": 90.0, "avg_us": 75.0, "p50_us": 74.0, "p95_us": 88.0,
        "p99_us": 89.0, "stdev_us": 3.0, "cv_pct": 4.0, "times_us": [120.0, 70.0, 90.0, 65.25],
        "per_process_max_times_us": [[120.0, 70.0, 90.0, 65.25]],
    }  # fmt: skip
    result = json_file()["results"][0] | {"out_of_place_per_iter": per_iteration}
    first, second = parse_log(json.dumps(json_file(results=[result])).encode(), file="x").measurements
    assert first.iterations is not None
    assert (first.iterations.least_us, first.iterations.most_us, first.iterations.skipped) == (70.0, 90.0, 1)
    assert first.iterations.times_us == (120.0, 70.0, 90.0, 65.25)
    assert second.iterations is None
    broken = json_file(results=[result | {"out_of_place_per_iter": per_iteration | {"times_us": ["x"]}}])
    with pytest.raises(InputError, match=r"'time' as a number .*out_of_place_per_iter\.times_us"):
        parse_log(json.dumps(broken).encode(), file="x")


def test_ranks_that_the_json_of_nccl_tests_does_not_list() -> None:
    """The file has the first rank of each process only."""
    devices = [each | {"rank": 8 * at} for at, each in enumerate(json_file()["config"]["devices"][::2])]
    config = {"nthreads": 1, "ngpus": 8, "devices": devices}
    (row, _) = parse_log(json.dumps(json_file(config=config)).encode(), file="x").measurements
    assert (row.ranks, row.nodes) == (16, 2)
    whole = {"nthreads": 1, "ngpus": 2, "devices": json_file()["config"]["devices"]}
    (row, _) = parse_log(json.dumps(json_file(config=whole)).encode(), file="x").measurements
    assert (row.ranks, row.nodes) == (4, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"results": []}, r"list of results in x \(\$\.results\)"),
        ({"results": ["no"]}, r"object at x: \$\.results\[0\]"),
        ({"results": [{}]}, r"'size' as an integer .* at x: \$\.results\[0\], found nothing"),
        ({"results": [json_file()["results"][0] | {"root": "?"}]}, "'root' as an integer"),
        ({"results": [json_file()["results"][0] | {"in_place": 3}]}, "object 'in_place' at"),
        (
            {"results": [json_file()["results"][0] | {"in_place": {"time": "nan"}}]},
            r"'time' as a number .*in_place",
        ),
        ({"config": {"devices": [{}]}}, r"\$\.config\.devices\[0\]"),
        ({"args": ["x"]}, "does not say which collective"),
    ],
)
def test_bad_json_of_nccl_tests(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_log(json.dumps(json_file(**changes)).encode(), file="x")


def record(rank: int, number: int, time_us: int, *, coll: str = "AllGather", **perf: Any) -> dict[str, Any]:
    """A record of the inspector, as of format v4.2."""
    return {
        "header": {"id": "0xabc", "comm_name": "tp", "rank": rank, "n_ranks": 8, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.2",
            "hostname": "n",
            "pid": 1,
            "dump_timestamp_us": 5,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": number,
            "coll_msg_size_bytes": 1 << 20,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 1.0,
            "coll_busbw_gbs": 1.0,
        }
        | perf,
    }


def lines_of(*records: object) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def test_inspector(tmp_path: Path) -> None:
    """Ranks of one collective together: the slowest counts; sizes of a gather are those of all ranks."""
    one = lines_of(
        record(0, 1, 50, coll_algo="RING", coll_proto="LL128"),
        {"header": {}, "dump_stats": {"coll_records": 1, "coll_dropped_since_last_dump": 3}},
        record(0, 2, 60, coll="AllReduce"),
        {"header": {"id": "0xabc"}, "p2p_perf": {"p2p": "Send", "p2p_peer": 3}},
        record(0, 3, 9, coll="AlltoAll"),
    )
    two = json.dumps([record(1, 1, 70), record(1, 2, 40, coll="AllReduce")], indent=1)
    (tmp_path / "a.log").write_text(one)
    (tmp_path / "b.log").write_text(two)
    first, second = read_logs([tmp_path / "a.log", tmp_path / "b.log"])
    gather, reduce = first.measurements
    assert second.measurements == ()
    assert (gather.collective, gather.ranks, gather.nodes, gather.size_bytes) == ("all_gather", 8, 1, 8 << 20)
    assert (gather.time_us, gather.least_us, gather.algorithm, gather.protocol) == (70, 50, "ring", "ll128")
    assert (reduce.size_bytes, reduce.time_us, reduce.least_us, reduce.line) == (1 << 20, 60, 40, 3)
    assert first.beside == {"Send": 1, "AlltoAll": 1}
    assert first.warnings == (f"{tmp_path / 'a.log'}: the inspector says that it lost 3 records",)


def test_clocks_of_the_inspector() -> None:
    """What the host timed around the call is no time of a kernel, and is not compared with one."""
    text = lines_of(
        record(0, 1, 50),
        record(1, 1, 90, coll_timing_source="collective_cpu"),
        record(0, 2, 70, coll_timing_source="collective_cpu"),
        record(1, 2, 80, coll_timing_source="collective_cpu"),
        record(0, 3, 60, coll_timing_source="kernel_cpu"),
    )
    log = parse_log(text.encode(), file="x")
    assert [(each.time_us, each.clock, each.of_kernels) for each in log.measurements] == [
        (50, "kernel_gpu", True),
        (80, "collective_cpu", False),
        (60, "kernel_cpu", True),
    ]
    assert log.warnings == (
        "x: left out: 1 time by another clock than on the other ranks",
        "x: 1 measurement by the host's clock around the call (collective_cpu): no times of kernels",
    )


def test_inspector_of_later_formats() -> None:
    """From v4.3 on the communicator is named once for the records of a dump."""
    whole = record(3, 9, 11)
    dump = {"header": whole["header"], "metadata": whole["metadata"], "dump_stats": {"coll_records": 2}}
    text = lines_of(
        dump, {"coll_perf": whole["coll_perf"]}, {"coll_perf": whole["coll_perf"] | {"coll_sn": 10}}
    )
    found = parse_log(text.encode(), file="x").measurements
    assert [(each.ranks, each.time_us, each.line) for each in found] == [(8, 11, 2), (8, 11, 3)]
    with pytest.raises(InputError, match="x:1 names no communicator"):
        parse_log(lines_of({"coll_perf": whole["coll_perf"]}).encode(), file="x")


def test_inspector_of_a_killed_job() -> None:
    text = lines_of(record(0, 1, 50), record(0, 2, 50))
    log = parse_log(text[:-30].encode(), file="x")
    assert len(log.measurements) == 1
    assert log.warnings == ("x:2 is cut off: the last record is left out",)


def test_inspector_that_contradicts_itself() -> None:
    with pytest.raises(InputError, match=r"x:2 has 5 bytes on 8 ranks, and x:1 1048576 on 8"):
        parse_log(lines_of(record(0, 1, 5), record(1, 1, 5, coll_msg_size_bytes=5)).encode(), file="x")
    again = parse_log(lines_of(record(0, 1, 5), record(0, 1, 7)).encode(), file="x").measurements
    assert [(each.time_us, each.least_us) for each in again] == [(5, None), (7, None)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coll": 3}, "'coll' as a text at x:1"),
        ({"coll_exec_time_us": -1}, "'coll_exec_time_us' as a number"),
        ({"coll_msg_size_bytes": 1.5}, "'coll_msg_size_bytes' as an integer"),
        ({"coll_sn": True}, "'coll_sn' as an integer"),
    ],
)
def test_bad_records(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_log(lines_of(record(0, 1, 5, **changes)).encode(), file="x")


GRAPH = """\
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="20" speedinter="10.5" latencyinter="0" \
typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel>
      <net dev="0x1"/>
      <gpu dev="0x0" rank="0"/>
      <gpu dev="a"/>
      <net dev="2"/>
    </channel>
  </graph>
</graphs>
"""


def test_graphs() -> None:
    (graph,) = parse_log(GRAPH.encode(), file="g.xml").graphs
    assert (graph.kind, graph.pattern, graph.nchannels, graph.line) == ("ring", 4, 1, 2)
    assert (float(graph.speed_inter), graph.type_intra, graph.same_channels) == (10.5, "NVL", True)
    (channel,) = graph.channels
    assert [(gpu.dev, gpu.rank) for gpu in channel.gpus] == [(0, 0), (10, None)]
    assert (channel.entry, channel.exit, channel.line) == (1, 2, 3)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id="0"', 'id="7"', "id as an integer 0 .. 4"),
        ('dev="a"', 'dev="x"', r"dev as a hexadecimal number on <gpu> at g\.xml:6"),
        ('nchannels="1"', "", "nchannels as an integer"),
        ('typeintra="NVL"', "", "attribute typeintra"),
        ("graphs", "algorithm", "expected <"),
        ("graphs", "algo", "an algorithm for MSCCL or RCCL, no log"),
    ],
)
def test_bad_graphs(old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_log(GRAPH.replace(old, new).encode(), file="g.xml")


@needs_shared
def test_topology_dump() -> None:
    log = read_log(SHARED / "topologies" / "rccl_topo_8p_940.xml")
    assert log.kind == "topology of NCCL"
    assert log.topology is not None
    assert log.topology.num_ranks == 8


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"hello\nworld\n", "of no known kind"),
        (b'{"a": 1}', "x:1 is JSON of no known kind"),
        (b'{"a": ', "x:1 is no JSON"),
        (b"[" * 100_000, "of no known kind"),
        (b"{" + b'"a":{' * 100_000, "nested too deeply|no JSON"),
        (b'{"results": [{"size": ' + b"9" * 10_000 + b"}]}", "too large"),
        (b"<a/>", "expected <system>"),
        (b"\xff\xfe\x00", "of no known kind"),
    ],
)
def test_what_is_no_log(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_log(data, file="x")


@pytest.mark.parametrize("kind", ["log", "table", "tests", "inspector", "graph"])
def test_damaged_files(kind: str) -> None:
    """Bytes lost, repeated or changed: records or one sentence, nothing else."""
    whole = {
        "log": LOG + CHOICES,
        "table": LOG + ROWS,
        "tests": json.dumps(json_file(), indent=1),
        "inspector": lines_of(record(0, 1, 50), record(1, 1, 60), record(0, 2, 60, coll="Reduce")),
        "graph": GRAPH,
    }[kind].encode()
    rng = random.Random(7)
    read = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            at, length = rng.randrange(len(data)), rng.choice((1, 1, 2, 20))
            change = rng.randrange(4)
            if change == 0:
                del data[at : at + length]
            elif change == 1:
                data[at:at] = data[rng.randrange(len(data)) :][:length]
            elif change == 2:
                data[at] = rng.choice(b'\0\xff0123456789-.eE|/:"<>{}[],\n \t')
            else:
                data[at:at] = rng.choice(
                    (b"9" * 25, b"-", b"nan", b"1e999", "\u0663".encode(), b"null", b"\n")
                )
        try:
            log = parse_log(bytes(data), file="x")
        except InputError:
            continue
        read += 1
        assert all(each.time_us >= 0 and each.size_bytes >= 0 for each in log.measurements)
    assert read > 5


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.log").write_text(LOG + ROWS + CHOICES)
    (tmp_path / "graph.xml").write_text(GRAPH)
    files = [str(tmp_path / "run.log"), str(tmp_path / "graph.xml")]
    command(files)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].endswith(
        "table of nccl-tests and log of NCCL, version 2.27.7, no tuner plug-in, 4 measurements, 1 communicator"
    )
    assert "  calls that no tuner is asked about: AllReduce by symmetric (1), Send (1)" in lines
    (row,) = (
        line.split() for line in lines if line.startswith("all_reduce") and " 1M " in line and " two " in line
    )
    assert row == [
        "all_reduce",
        "16",
        "2",
        "1M",
        "two",
        "1",
        "75.25",
        "75.25",
        "13.93",
        "ring",
        "ll128",
        "16",
        "0",
    ]
    assert "    NIC1 0 10 NIC2" in lines
    assert "warning: " in printed.err
    command(files, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in found["files"]] == [
        "table of nccl-tests and log of NCCL",
        "graphs of NCCL",
    ]
    assert found["files"][0]["measurements"][0]["channels"] == 16
    assert found["files"][0]["decisions"][1]["size_bytes"] == 16 * 131072
    with pytest.raises(InputError, match="--collective with a name"):
        command(files, collective="all_sums")


def test_page_shows_real_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "logs.md"
    log, shown = re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("run.log").write_text(log)
    command(["run.log"])
    assert capsys.readouterr().out == shown


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
