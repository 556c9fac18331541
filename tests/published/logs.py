"""Logs and tables as people posted them: launchers' prefixes, torn rows, mixed runs, forks of nccl-tests."""

from __future__ import annotations

from typing import Any

from published.check import Answer, Check

_TORN = "01-rows-torn-by-tuning-log"
_MIXED = "02-two-runs-in-one-file"
_PREFIXES = "03-launcher-prefixes"
_RCCL = "06-rccl-tests-outputs"
_KINDS = {"tag_output", "quoted", "cloudwatch_own_line", "timestamped", "under_gdb"}
_TIMES = [136.3, 70.85, 69.29, 68.67, 69.08, 69.13, 69.1, 68.73, 68.37, 68.62]


def _file(answer: Answer) -> dict[str, Any]:
    (found,) = answer.json["files"]
    assert isinstance(found, dict)
    return found


def _times(answer: Answer) -> list[float]:
    return [row["time_us"] for row in _file(answer)["measurements"]]


def _all_of(answer: Answer, **expected: object) -> bool:
    """Every measurement has these values."""
    return all(row[key] == value for row in _file(answer)["measurements"] for key, value in expected.items())


def _torn(answer: Answer) -> bool:
    rows = _file(answer)["measurements"]
    assert len(rows) == 28
    assert _all_of(answer, ranks=24, nodes=3, wrong=0)
    assert _file(answer)["version"] == "2.22.3"
    chosen = {
        row["size_bytes"]: (row["algorithm"], row["protocol"]) for row in rows if row["algorithm"] is not None
    }
    assert chosen == {256: ("tree", "ll"), 512: ("tree", "ll"), 262144: ("tree", "ll128")}
    by_size = {(row["size_bytes"], row["in_place"]): row["time_us"] for row in rows}
    assert (by_size[256, False], by_size[262144, False], by_size[262144, True]) == (62.18, 280.9, 281.5)
    assert (by_size[1 << 20, False], by_size[1 << 20, True]) == (1626.5, 2302.3)
    return by_size[1 << 29, True] == 192903


def _runs_of_eight(answer: Answer) -> bool:
    assert len(_times(answer)) == 16
    assert _all_of(answer, ranks=8, nodes=1)
    (words,) = _file(answer)["warnings"]
    return "2 runs of 8 ranks each" in words and "MPI=1" in words and "h800-2" in words


def _runs_of_one(answer: Answer, *, rows: int) -> bool:
    assert len(_times(answer)) == rows
    assert _all_of(answer, ranks=1, nodes=1)
    words = " ".join(_file(answer)["warnings"])
    return "2 runs of 1 rank each" in words and "MPI=1" in words


def _two_ranks(answer: Answer) -> bool:
    assert _times(answer) == _TIMES
    assert _all_of(answer, ranks=2, nodes=2, wrong=0)
    assert _file(answer)["version"] == "2.21.5"
    assert len(_file(answer)["communicators"]) == 1
    return not _file(answer)["warnings"]


def _csv(answer: Answer) -> bool:
    first, second = _file(answer)["measurements"]
    assert _all_of(
        answer, collective="all_reduce", ranks=8, nodes=1, size_bytes=1 << 20, type="float", wrong=0
    )
    assert (first["time_us"], first["in_place"]) == (55.66, False)
    assert (second["time_us"], second["in_place"]) == (54.91, True)
    return "nodes" in _file(answer)["warnings"][0]


def _lines(answer: Answer) -> bool:
    rows = _file(answer)["measurements"]
    assert [row["size_bytes"] for row in rows] == [1024, 1024, 2048, 2048, 4096]
    assert [row["in_place"] for row in rows] == [False, True, False, True, False]
    assert _all_of(answer, collective="all_reduce", ranks=4, wrong=0)
    return abs(rows[0]["time_us"] - 19.18415) < 1e-9


def _cycles(answer: Answer) -> bool:
    assert _times(answer) == [55.66, 54.91, 61.2, 60.75, 54.87, 54.7, 60.98, 60.66]
    assert _all_of(answer, collective="all_reduce", ranks=8, nodes=1)
    return not _file(answer)["warnings"]


def _in_place(answer: Answer) -> bool:
    (row,) = _file(answer)["measurements"]
    assert (row["size_bytes"], row["time_us"], row["in_place"], row["wrong"]) == (1 << 30, 17018, True, 0)
    return (row["ranks"], row["nodes"]) == (8, 1) and "mscclpp-test" in _file(answer)["kind"]


def _hwloc(answer: Answer) -> bool:
    return answer.status == 2 and "lstopo" in answer.err and "NCCL_TOPO_DUMP_FILE" in answer.err


_REDUCE = "--collective all_reduce --json"

CHECKS: list[Check] = [
    Check(
        _TORN,
        "28 measurements on 24 ranks, torn rows with the choice",
        f"coppice logs all_reduce_3x8_h100.log {_REDUCE}",
        _torn,
    ),
    Check(
        _TORN,
        "the option that is missing is named",
        "coppice logs all_reduce_3x8_h100.log",
        lambda answer: answer.status == 2 and "--collective" in answer.err,
    ),
    Check(_MIXED, "two runs of 8 ranks", f"coppice logs all_reduce_2x8_h800.txt {_REDUCE}", _runs_of_eight),
    Check(
        _MIXED,
        "two runs of 1 rank, 12 columns",
        f"coppice logs all_reduce_2x1_v100.txt {_REDUCE}",
        lambda answer: _runs_of_one(answer, rows=4),
    ),
    Check(
        _MIXED,
        "two runs of 1 rank, sizes go back",
        f"coppice logs all_reduce_mixed_rows.txt {_REDUCE}",
        lambda answer: _runs_of_one(answer, rows=20) and "sizes go back" in answer.out,
    ),
    Check(
        _MIXED,
        "a table is not fitted without a word on the cure",
        "coppice tune from-logs all_reduce_2x8_h800.txt --collective all_reduce -o t.csv",
        lambda answer: answer.status == 2 and "MPI=1" in answer.err,
    ),
    Check(
        _MIXED,
        "tune from-logs has the option that its error names",
        "coppice tune from-logs all_reduce_2x8_h800.txt -o t.csv",
        lambda answer: answer.status == 2 and "--collective" in answer.err,
    ),
    *(
        Check(
            _PREFIXES,
            f"5 rows, 2 ranks, 1 communicator: {kind}",
            f"coppice logs {kind}.log {_REDUCE}",
            _two_ranks,
        )
        for kind in sorted(_KINDS)
    ),
    Check(
        "05-mscclpp-test-table",
        "one measurement, in place",
        f"coppice logs mscclpp_allreduce_1g.txt {_REDUCE}",
        _in_place,
    ),
    Check(_RCCL, "CSV whose header lacks a column", "coppice logs all_reduce.csv --json", _csv),
    Check(_RCCL, "JSON lines", "coppice logs all_reduce.jsonl --json", _lines),
    Check(_RCCL, "two cycles of one run", "coppice logs all_reduce_cycles.txt --json", _cycles),
    Check("10-lstopo-xml", "logs names lstopo and what to give", "coppice logs topology.xml", _hwloc),
]
