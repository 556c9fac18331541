"""`coppice bound --size` and `plan --size`: least times with certificates that `coppice verify` counts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Run

ARGUMENTS = ("bound", "dgx-a100", "--boxes", "2", "-c", "all_gather")


def test_rows_have_the_least_time_its_model_and_its_witness(run: Run) -> None:
    rows = run(*ARGUMENTS, "--size", "0,1K:4G:64", "--json").json["sizes"]
    assert isinstance(rows, list)
    assert [row["size_bytes"] for row in rows] == [0, *(1024 * 64**k for k in range(4))]
    assert all({"size_bytes", "least_seconds", "model", "limit", "witness"} <= set(row) for row in rows)
    seconds = [row["least_seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert {row["model"] for row in rows} == {"nccl-2.30"}
    assert {row["witness"]["kind"] for row in rows} == {"moving-cut"}


def test_long_messages_have_the_rate_of_the_bound(run: Run) -> None:
    found = run(*ARGUMENTS, "--size", "1T", "--model", "alpha-beta", "--json").json
    (row,) = found["sizes"]
    assert 2**40 / row["least_seconds"] / 1e9 == pytest.approx(found["optimum_algbw_gb_per_s"], rel=1e-6)
    assert row["model"] == "alpha-beta"


@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "gather"]
)
def test_certificates_are_checked_from_a_file(run: Run, tmp_path: Path, collective: str) -> None:
    path = tmp_path / "bounds.json"
    shown = run("bound", "mi250", "-c", collective, "--size", "1K,1M,1G", "-o", path)
    assert shown.code == 0, shown.err
    assert "written to" in shown.out
    checked = run("verify", path, "--json").json
    assert (checked["verified"], checked["failures"]) == (True, [])
    assert [row["size_bytes"] for row in checked["proved_times"]] == [2**10, 2**20, 2**30]


@pytest.mark.parametrize(
    ("words", "size", "told"),
    [
        (("dgx-a100", "-c", "all_reduce"), "16K", "sources"),
        (("dgx-a100", "--boxes", "2", "-c", "all_to_all"), "1M", "more_sinks"),
        (("gb200-nvl72", "-c", "broadcast"), "1K", "growth"),
        (("dgx-h100", "--boxes", "4", "-c", "all_reduce"), "4M", "representatives"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_what_a_certificate_names_is_kept(
    run: Run, tmp_path: Path, words: tuple[str, ...], size: str, told: str
) -> None:
    path = tmp_path / "bounds.json"
    run("bound", *words, "--size", size, "-o", path)
    assert run("verify", path, "--json").json["verified"] is True
    written = json.loads(path.read_text())
    rows = [part for row in written["sizes"] for part in (row, row.get("cut") or {}) if told in part]
    assert any(row[told] not in (None, []) for row in rows)
    for row in rows:
        del row[told]
    path.write_text(json.dumps(written))
    assert run("verify", path, "--json").json["verified"] is False


def test_certificates_of_before_are_still_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bounds.json"
    run(*ARGUMENTS, "--size", "1M", "-o", path)
    written = json.loads(path.read_text())
    for row in written["sizes"]:
        del row["cut"]["sources"], row["cut"]["more_sinks"]
    path.write_text(json.dumps(written))
    assert run("verify", path, "--json").json["verified"] is True


def test_only_ranks_stand_for_sets(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bounds.json"
    run("bound", "dgx-h100", "--boxes", "4", "-c", "all_reduce", "--size", "4M", "-o", path)
    written = json.loads(path.read_text())
    next(row for row in written["sizes"] if "representatives" in row)["representatives"] = [8]
    path.write_text(json.dumps(written))
    assert "expected nodes with ranks at" in run("verify", path).err


def test_a_changed_certificate_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bounds.json"
    run(*ARGUMENTS, "--size", "1M", "--model", "alpha-beta", "-o", path)
    written = json.loads(path.read_text())
    row = written["sizes"][0]
    row["time_us"] = row["time_us"].replace("/", "1/") if "/" in row["time_us"] else row["time_us"] + "1"
    shorter = {**written, "sizes": [{**row, "time_us": "10000"}]}
    path.write_text(json.dumps(shorter))
    refused = run("verify", path)
    assert refused.code == 1
    assert "the certificate is of" in refused.out + refused.err
    far = {**row, "cut": {**row["cut"], "offset": [2**70, *row["cut"]["offset"][1:]]}}
    path.write_text(json.dumps({**written, "sizes": [far]}))
    assert "$.sizes[0].cut.offset[0]" in run("verify", path).err
    row["cut"]["offset"] = row["cut"]["offset"][1:]
    path.write_text(json.dumps({**written, "sizes": [row]}))
    assert "expected labels of 36 nodes" in run("verify", path).err


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        (("--model", "alpha-beta"), "found one alone"),
        (("-o", "x.json"), "found one alone"),
        (("--size", "1M", "--in-network"), "found both"),
        (("--size", "1M", "--groups", "tp=8,dp=2"), "found --size with them"),
        (("--size", "1M", "--model", "nope"), "expected a model of"),
        (("--size", "1X"), "size"),
    ],
)
def test_contradictions_are_one_sentence(run: Run, more: tuple[str, ...], answer: str) -> None:
    refused = run("bound", "dgx-h100", *more)
    assert refused.code == 2
    assert answer in refused.err


def test_a_named_algorithm_stays(run: Run) -> None:
    words = ("plan", "dgx-a100", "-c", "all_reduce", "--size", "16K", "--json")
    assert run(*words, "--algorithm", "ring").json["planner"] == "ring"
    assert run(*words, "--trees", "2").json["planner"] == "forest"


def test_one_size_has_its_figures_at_the_top(run: Run) -> None:
    words = ("plan", "ring", "--set", "gpus=4", "-c", "all_gather", "--json")
    found = run(*words, "--size", "1M").json
    (row,) = found["sizes"]
    assert (
        found["gap"] == row["gap"] == pytest.approx(found["simulated_seconds"] / found["least_seconds"] - 1)
    )
    (least,) = run("bound", *words[1:], "--size", "1M").json["sizes"]
    assert least["least_seconds"] == found["least_seconds"]
    several = run(*words, "--size", "1K,1M").json
    assert [each["size_bytes"] for each in several["sizes"]] == [2**10, 2**20]
    assert "gap" not in several


def test_the_least_time_is_printed_with_what_limits_it(run: Run) -> None:
    shown = run("plan", "dgx-a100", "--boxes", "2", "-c", "all_gather", "--size", "1M").out
    assert "least time" in shown
    assert "longer: 512 KiB must enter box0 at 187.5 GB/s" in shown
