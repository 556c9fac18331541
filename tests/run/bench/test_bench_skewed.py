"""Benchmarks of unequal blocks: right results, counts that add up to M, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from coppice.bounds.skews import parse_popularity, skewed_counts, skewed_demands
from coppice.errors import InputError
from coppice.run.bench.measuring import BenchRow
from coppice.run.bench.skewed import bench_skewed
from coppice.run.engines.numpy import NumpyEngine, run_ranks
from coppice.topology.presets import preset


def rows_of(skew: str, algorithms: list[str], **options: int) -> list[BenchRow]:
    boxes = preset("dgx-h100", boxes=2)

    def work(engine: NumpyEngine) -> list[BenchRow]:
        chosen = {"rounds": 1, "warmup": 0, **options}
        return list(bench_skewed(engine, boxes, skew, algorithms=algorithms, sizes=[6000], **chosen))

    results = run_ranks(16, work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert isinstance(results[0], list)
    return results[0]


def test_all_ways_exchange_the_blocks() -> None:
    found = rows_of("hot:9", ["direct", "two-stage", "optimal", "sabre", "native"])
    assert [row.wrong for row in found] == [0] * 5
    assert [bool(row.refusal) for row in found] == [False] * 4 + [True]
    assert {(row.size_bytes, row.count, row.skew) for row in found} == {(6000, 1500 * 16, "hot:9")}
    assert all(row.time_us > 0 for row in found[:4])


def test_an_algorithm_that_is_not_known_has_its_reason() -> None:
    [row] = rows_of("zipf:1", ["frob"])
    assert "frob" in row.refusal


@pytest.mark.parametrize("skew", ["zipf:0", "zipf:1.5", "hot:3"])
@pytest.mark.parametrize("elements", [0, 1, 7, 1000])
def test_counts_add_up(skew: str, elements: int) -> None:
    counts = skewed_counts(skewed_demands(skew, 6), elements)
    assert counts.sum() == 6 * elements
    assert (counts.diagonal() == 0).all()
    assert counts.min() >= 0


def test_files_and_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text("5,1\n3,5\n")
    assert skewed_demands(str(file), 2).tolist() == [[0, 0.5], [1.5, 0]]
    for text, words in (
        ("zipf:x", "give a number behind the colon"),
        ("zipf:1/0", "give a number behind the colon"),
        ("zipf:nan", "found nan"),
        ("hot:1e400", "found 1e400"),
        ("zipf:1e9999999999", "found 1e9999999999"),
        ("zipf:-1", "expected a number of 0 to 10 behind `skew` zipf:"),
        ("hot:0.5", "expected a number of 1 to"),
    ):
        with pytest.raises(InputError, match=words):
            parse_popularity(text, option="skew")
    with pytest.raises(InputError, match="expected demands of 3 ranks, found 2 rows"):
        skewed_demands(str(file), 3)
    file.write_text("5,0\n0,5\n")
    with pytest.raises(InputError, match="expected a skew that sends something"):
        skewed_demands(str(file), 2)
    with pytest.raises(InputError, match="1 measured round or more"):
        rows_of("zipf:1", ["direct"], rounds=0)
