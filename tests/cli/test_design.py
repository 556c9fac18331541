"""`coppice design show` and `coppice design schedule`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Call
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.verification.verify import verify


def test_show_builds_verifies_and_compares(call: Call, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("topo.json", "plan.json", "picture.svg")]
    done = call(
        "show",
        "line(circulant(8,1,3))",
        "-o",
        paths[0],
        "--plan",
        paths[1],
        "--picture",
        paths[2],
        "-s",
        "1K,1M",
    )
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "line(circulant(8, 1, 3)) (32 ranks of degree 4)" in lines
    assert "recipe promises 3 steps, T_B 1 at most" in lines
    assert "steps 3 (Moore bound 3)" in lines
    assert "step loads 1, 4, 3 shards on the busiest link" in lines
    assert any(line.startswith("verified yes") for line in lines)
    assert any("1 MiB" in line and "trees" in line for line in lines)
    plan = read_plan(paths[1])
    assert verify(plan).ok
    assert plan.parameters["recipe"] == "line(circulant(8, 1, 3))"
    assert paths[2].read_text().startswith("<svg")
    again = call("schedule", paths[0], "--json")
    assert json.loads(again.stdout)["step_loads"] == ["1", "4", "3"]


def test_show_prints_json(call: Call) -> None:
    record = json.loads(call("show", "torus(4,6)", "-c", "all_reduce", "--no-forest", "--json").stdout)
    assert (record["ranks"], record["degree"], record["steps"], record["t_b"]) == (24, 4, 10, "23/12")
    assert record["forest_simulated_us"] == {}
    assert set(record["simulated_us"]) == {"1024", "1048576", "1073741824"}
    record = json.loads(call("show", "kautz(2,2)", "-c", "all_to_all", "--json").stdout)
    assert record["verified"] is True
    assert record["step_loads"] is None


def test_schedule_of_a_file(call: Call, tmp_path: Path) -> None:
    """Self-loops are dropped, rates differ, ranks are the file's."""
    links = [("a", "b", 10), ("b", "c", 10), ("c", "a", 20), ("a", "a", 99)]
    document = {
        "format": "coppice-topology",
        "version": 1,
        "name": "ring",
        "nodes": [{"id": name, "kind": "gpu"} for name in "abc"],
        "links": [{"from": a, "to": b, "gb_per_s": rate, "duplex": False} for a, b, rate in links],
    }
    path, plan = tmp_path / "graph.json", tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    record = json.loads(call("schedule", path, "--json", "-o", plan).stdout)
    assert (record["steps"], record["step_loads"], record["verified"]) == (2, ["1", "1"], True)
    assert record["t_b"] == "4/3"  # a node sends at 20 GB/s at most: 2 / 3 of (1 + 1)
    assert verify(read_plan(plan)).ok
    text = call("schedule", path, "--collective", "all_reduce").stdout
    assert "T_B" in text
    assert "verified    yes" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "torus(4"], "expected ')', found the end at column 8"),
        (["show", "complete(99999)"], "expected at most 65,536 nodes"),
        (["show", "biring(5)", "-c", "broadcast"], "expected one of all_gather"),
        (["show", "biring(5)", "-o", "-", "--json"], "standard output can hold"),
        (["show", "biring(5)", "--gb-per-s", "-1"], "expected a rate"),
        (["schedule", "dgx-a100"], "expected a direct-connect topology"),
        (["schedule", "ring", "-o", "-", "--json"], "standard output can hold"),
        (["schedule", "ring", "-c", "all_to_all"], "expected all_gather, reduce_scatter or all_reduce"),
    ],
)
def test_bad_input_is_one_sentence(call: Call, arguments: list[str], message: str) -> None:
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_picture_instead_of_the_topology(call: Call, tmp_path: Path) -> None:
    picture = tmp_path / "graph.svg"
    done = call("show", "gkautz(2, 7)^2", "-o", picture, "-s", "1K", "--no-forest")
    assert done.exit_code == 0
    assert "<svg" in picture.read_text()
    assert "of the expansions" in done.stdout
