"""CSV and JSON of rccl-tests and mscclpp-test: read by name, and refused where values stand under other names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.logs.reading import parse_log
from coppice.logs.records import Log

WHOLE = "numCycle,name,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inPlace,time,algBw,busBw,wrong"
LACKING = "numCycle,collective,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,algbw,busbw,#wrong"
ALONE = "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong"
ROW = '0,"AllReduce",1,8,8,1,1048576,"float","sum",0,55.66,18.84,32.97,"0"'
SMALL = '0,"AllReduce",1,8,8,1,8,"float","sum",1,40.10,0.00,0.00,"N/A"'


def read(*lines: str) -> Log:
    return parse_log("\n".join([*lines, ""]).encode(), file="x.csv")


@pytest.mark.parametrize("header", [WHOLE, LACKING])
def test_csv(header: str) -> None:
    log = read(header, ROW, SMALL)
    first, second = log.measurements
    assert (first.collective, first.ranks, first.nodes, first.size_bytes) == ("all_reduce", 8, 1, 1 << 20)
    assert (first.time_us, first.in_place, first.wrong, first.type, first.line) == (
        55.66,
        False,
        0,
        "float",
        2,
    )
    assert (second.size_bytes, second.in_place, second.wrong) == (8, True, None)
    assert log.kind == "CSV of rccl-tests"
    assert len(log.warnings) == (header is LACKING)


def test_csv_of_one_process_and_of_several_gpus_a_rank() -> None:
    (row,) = read(ALONE, '0,"AllReduce",8,1048576,"float","sum",0,55.66,18.84,32.97,"3"').measurements
    assert (row.ranks, row.nodes, row.wrong) == (8, 1, 3)
    (row,) = read(WHOLE, ROW.replace("1,8,8,1,1048576", "2,4,2,2,1048576")).measurements
    assert (row.ranks, row.nodes) == (8, 2)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((WHOLE, ROW.replace("55.66,", "")), "expected 14 values at x.csv:2, as the header names, found 13"),
        ((LACKING, ROW + ",1"), "expected 13 values at x.csv:2"),
        ((LACKING, SMALL), "confirm where the header of x.csv lacks a column"),
        (
            (LACKING, ROW.replace("1,8,8,1,", "2,8,8,1,")),
            "nodes, ranks and ranks of a node that fit each other",
        ),
        ((ALONE, "0,AllReduce,8,1048576,float,sum,0,55.66,81.84,143.22,0"), "found size / time is not algbw"),
        ((WHOLE, ROW.replace("1,8,8,1,", "1,4,4,1,")), r"busbw is 1.75 times algbw, as on 8 ranks"),
        ((WHOLE, ROW.replace("1048576", "float")), "size as an integer"),
        ((WHOLE, ROW.replace("55.66", "-1")), "numbers of 0 or more at x.csv:2"),
        ((WHOLE,), "the header of a CSV of rccl-tests and no row"),
    ],
)
def test_shifted_and_bad_csv(lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(*lines)


def test_other_collectives_are_counted() -> None:
    log = read(WHOLE, ROW, ROW.replace("AllReduce", "SendRecv"))
    assert len(log.measurements) == 1
    assert log.warnings == ("x.csv: left out: 1 record of SendRecv, no known collective",)


def record(**changes: Any) -> dict[str, Any]:
    return {
        "#wrong": "0", "algBw": 0.05337739748698796, "busBw": 0.08006609623048194, "gpus": 4, "inPlace": 0,
        "name": "AllReduce", "redop": "sum", "size": 1024, "time": 19.184150000000002, "type": "float",
    } | changes  # fmt: skip


def test_json_lines() -> None:
    text = json.dumps(record()) + "\n" + json.dumps(record(inPlace=1))
    log = parse_log(text.encode(), file="x")
    assert [(row.ranks, row.in_place, row.time_us) for row in log.measurements] == [
        (4, False, 19.184150000000002),
        (4, True, 19.184150000000002),
    ]
    assert log.kind == "JSON lines of rccl-tests"
    listed = parse_log(json.dumps([record(), record(inPlace=1)], indent=1).encode(), file="x")
    assert len(listed.measurements) == 2
    cut = parse_log(text[:-20].encode(), file="x")
    assert cut.warnings == ("x:2 is cut off: the last record is left out",)


def test_json_lines_of_mscclpp_test() -> None:
    line = {"name": "allreduce", "kernel": 4, "ranks": 8, "ranksPerNode": 8, "size": 1 << 30, "time": 17018.0}
    log = parse_log(json.dumps(line | {"algBw": 63.094, "busBw": 110.41}).encode(), file="x")
    (row,) = log.measurements
    assert (row.collective, row.ranks, row.nodes, row.in_place, log.kind) == (
        "all_reduce",
        8,
        1,
        None,
        "JSON lines of mscclpp-test",
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 8}, "busbw is 1.5 times algbw"),
        ({"size": 2048}, "size / time is not algbw"),
        ({"time": "fast"}, "numbers of 0 or more at x:1"),
        ({"inPlace": True}, "in_place as an integer"),
    ],
)
def test_bad_json_lines(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_log(json.dumps(record(**changes)).encode(), file="x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8 3.1\n", "OSU micro-benchmarks"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-15\nGPU1\tNV4\t X \t0-15\n", "coppice topology show"),
        ("allreduce,0,1024,tree,ll,-1,2,16\n", "a tuner table: give it to `coppice doctor`"),
        ('{"traceEvents": []}', "a trace of a profiler"),
        ('{"format": "coppice-plan", "version": 1}', "a file of Coppice, no log"),
        ('<!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0"/>', "lstopo"),
        ('<topology version="2.0"/>', "lstopo"),
        ('<algo name="a" proto="LL"/>', "an algorithm for MSCCL or RCCL, no log"),
    ],
)
def test_other_kinds_are_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_log(text.encode(), file="x")


LOG = "n1:7:7 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}\n"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"log": LOG, "stream": "stdout", "time": "2024-11-08T17:00:00Z"}) + "\n",
        json.dumps({"events": [{"timestamp": 1, "message": LOG.rstrip()}]}),
        json.dumps([{"textPayload": LOG}]),
        json.dumps({"ts": 1.0, "msg": LOG}) * 1 + "\n" + json.dumps({"ts": 2.0, "msg": "done"}) + "\n",
    ],
)
def test_logs_inside_of_json(text: str) -> None:
    (choice,) = parse_log(text.encode(), file="x").decisions
    assert (choice.algorithm, choice.channels) == ("ring", 4)
