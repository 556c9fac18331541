"""Schedules of methods of synthesis in a comparison: rows beside the algorithms, or named with why not."""

from __future__ import annotations

import csv
import io

import pytest

from coppice.comparison import compare
from coppice.comparison.outcome import Comparison
from coppice.comparison.table import csv_text, refusal_lines, synthesis_lines
from coppice.errors import InputError
from coppice.topology.presets import preset

BOXES = preset("dgx-a100", boxes=2)


def compared(collective: str = "all_gather", **more: object) -> Comparison:
    options = {
        "sizes": [2**16, 2**26],
        "algorithms": ["ring"],
        "synthesize": ["tacos", "syccl"],
        "jobs": 1,
    } | more
    return compare(BOXES, collective, **options)


def test_methods_are_rows_with_rate_gap_and_seconds() -> None:
    found = compared()
    assert set(found.times) == {"ring", "tacos", "syccl"}
    by_name = {row.algorithm: row for row in found.synthesized}
    assert set(by_name) == {"tacos", "syccl"}
    assert by_name["syccl"].gap == 0
    for row in found.to_table():
        assert row["time_us"] >= row["limit_us"] * (1 - 1e-9)
        assert (row["synthesis_seconds"] is None) == (row["algorithm"] == "ring")
    assert [line.split()[0] for line in synthesis_lines(found)] == ["tacos", "syccl"]
    assert "the optimum" in synthesis_lines(found)[1]
    rows = list(csv.DictReader(io.StringIO(csv_text([found]))))
    assert {row["algorithm"] for row in rows if row["synthesis_seconds"]} == {"tacos", "syccl"}
    assert {row["algorithm"] for row in found.record()["rows"]} == {"ring", "tacos", "syccl"}


def test_what_a_method_does_not_serve_is_named_with_its_reason() -> None:
    found = compared("broadcast", algorithms=["binomial"])
    assert "tacos" in found.times
    (line,) = refusal_lines(found)
    assert line.startswith("syccl: method syccl synthesises all_gather")
    assert found.record()["refusals"]["syccl"]


def test_a_method_that_lacks_routes_is_not_tried_again_with_relays() -> None:
    found = compare(
        preset("ring", gpus=5), "all_to_all", sizes=[2**16], algorithms=["flow"], synthesize=["tacos"], jobs=1
    )
    (line,) = refusal_lines(found)
    assert line.startswith("tacos: tacos brings chunks only to ranks that want them")


def test_unknown_methods_and_no_time_are_refused() -> None:
    with pytest.raises(InputError, match="methods of synthesis"):
        compared(synthesize=["magic"])
    with pytest.raises(InputError, match="above 0 seconds"):
        compared(synthesis_time_limit_s=0.0)


def test_measurements_are_kept_with_their_seconds(tmp_path: object) -> None:
    file = f"{tmp_path}/kept.jsonl"
    first, second = (compared(results=file, sizes=[2**16]) for _ in range(2))
    assert first.synthesized == second.synthesized
    other = compared(results=file, sizes=[2**16], seed=1)
    assert {row.key for row in other.synthesized}.isdisjoint(row.key for row in first.synthesized)
