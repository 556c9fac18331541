"""`coppice design`: the graphs that nothing beats, and `show`, `schedule`, `cabling` of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Call
from coppice.options.shared import USUAL_SIZES
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.verification.verify import verify
from coppice.text import parse_sizes


def test_show_builds_verifies_and_compares(call: Call, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("topo.json", "plan.json", "picture.svg")]
    done = call(
        "show",
        "line(circulant(8,1,3))",
        "-o",
        paths[0],
        "--plan",
        paths[1],
        "--plot",
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
    assert set(record["simulated_us"]) == {str(size) for size in parse_sizes(USUAL_SIZES)}
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


def test_the_front_and_its_files(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "designs"
    done = call("--num-ranks", 64, "--degree", 4, "-o", folder, "--panel-ports", 96, "--jobs", 1)
    assert done.exit_code == 0
    assert "64 ranks of degree 4: 2 graphs that nothing found beats" in done.stdout
    assert "gkautz(4, 64)" in done.stdout
    front = json.loads((folder / "front.json").read_text())
    assert [entry["steps"] for entry in front["front"]] == [3, 4]
    assert sorted(front["cabling"]) == sorted(path.name for path in folder.glob("*.csv"))
    for name, figures in front["cabling"].items():
        lines = (folder / name).read_text().splitlines()
        assert len(lines) == 1 + figures["count"]
        assert lines[0].endswith("to_panel,to_position")
        assert figures["panels"] == 3


def test_the_choice_for_a_workload(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "best.csv"
    arguments = ["--num-ranks", 64, "--degree", 4, "--size", "1M", "--alpha-us", 10, "--node-gb-per-s", 12.5]
    done = call(*arguments, "--cabling", file, "--json", "--jobs", 1)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    times = {option["name"]: option["time_us"] for option in found["options"]}
    assert {"ring", "torus(8, 8)", "hypercube(6)", "double binary tree"} <= set(times)
    assert min(times.values()) == found["options"][0]["time_us"]
    assert len(file.read_text().splitlines()) == 1 + 256
    text = call(*arguments, "--jobs", 1).stdout
    assert "best" in text
    assert "ring" in text


def test_a_range_prints_every_front(call: Call, tmp_path: Path) -> None:
    results = tmp_path / "bases.jsonl"
    arguments = ["--num-ranks", "6:9", "--degree", "2:3", "--results", results, "--jobs", 1]
    lines = call(*arguments).stdout.splitlines()
    assert lines[0].split() == ["ranks", "degree", "steps", "T_B", "recipe"]
    found = json.loads(call(*arguments, "--json").stdout)["fronts"]
    assert len(found) == len(lines) - 1
    assert {(entry["ranks"], entry["degree"]) for entry in found} == {
        (n, d) for n in range(6, 10) for d in (2, 3)
    }
    assert results.stat().st_size > 0


def test_full_duplex_only(call: Call) -> None:
    done = call("--num-ranks", 16, "--degree", 4, "--bidirectional", "--json", "--jobs", 1)
    assert all(entry["bidirectional"] for entry in json.loads(done.stdout)["front"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-ranks", "8"], "expected `--num-ranks` and `--degree` together"),
        (["--num-ranks", "x", "--degree", "2"], "a number or a range"),
        (["--num-ranks", "9:8", "--degree", "2"], "found '9:8'"),
        (["--num-ranks", "8", "--degree", "9"], "expected a graph of 8 ranks and degree 9, found none"),
        (["--num-ranks", "9", "--degree", "3", "--bidirectional", "--jobs", "1"], "leave out `--bidirectional`"),
        (["--num-ranks", "1", "--degree", "1"], "2 .. 65,536 ranks"),
        (["--num-ranks", "8:9", "--degree", "2", "--size", "1M"], "leave out the range"),
        (["--num-ranks", "8", "--degree", "2", "--cabling", "x.csv"], "say for which `--size`"),
        (["--num-ranks", "1024", "--degree", "4", "--ports-per-node", "3"], "4 > 3"),
        (["--num-ranks", "1024", "--degree", "4", "--panel-ports", "96", "--max-panels", "9"], "43 > 9"),
        (["--num-ranks", "8", "--degree", "2", "--max-panels", "9"], "give `panel_ports`"),
        (["--num-ranks", "8", "--degree", "2", "--size", "1M", "--collective", "all_to_all"], "all_reduce"),
        (["--num-ranks", "8", "--degree", "2", "show", "diamond"], "before `show`"),
    ],
)  # fmt: skip
def test_requests_without_meaning_are_refused(call: Call, arguments: list[str], message: str) -> None:
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_cabling_of_a_recipe(call: Call, tmp_path: Path) -> None:
    text = call("cabling", "torus(3, 3)").stdout
    assert len(text.splitlines()) == 1 + 18
    file = tmp_path / "torus.csv"
    done = call("cabling", "torus(3, 3)", "-o", file, "--panel-ports", 12)
    assert "3, " in done.stdout
    assert file.read_text().splitlines()[1].startswith("1,gpu0,0,")
    assert json.loads(call("cabling", "torus(3, 3)", "--json").stdout)["count"] == 18
    assert call("cabling", "torus(3, 3)", "--ports-per-node", 3).exit_code == 2


def test_networks_are_compared(call: Call, tmp_path: Path) -> None:
    workload, prices = tmp_path / "workload.json", tmp_path / "prices.json"
    uses = [{"collective": "all_gather", "size_bytes": 65536}]
    workload.write_text(
        json.dumps({"ranks": 8, "ports": 2, "collectives": uses, "failures": {"links": 1, "samples": 1}})
    )
    cables = [{"max_m": 50, "price": 3}]
    prices.write_text(json.dumps({"nic_port": 1, "switches": [{"radix": 16, "price": 90}], "cables": cables}))
    table, picture = tmp_path / "all.csv", tmp_path / "all.svg"
    done = call("compare", workload, "--prices", prices, "--csv", table)
    assert done.exit_code == 0
    assert "clos, radix 16" in done.stdout
    assert "best" in done.stdout
    quotes = json.loads(call("compare", workload, "--prices", prices, "--json").stdout)["quotes"]
    assert len(table.read_text().splitlines()) == 1 + len(quotes)
    assert call("compare", workload, "--prices", prices, "--plot", tmp_path / "all.bmp").exit_code == 2
    pytest.importorskip("matplotlib")
    assert call("compare", workload, "--prices", prices, "--plot", picture).exit_code == 0
    assert "clos, radix 16" in picture.read_text() or picture.stat().st_size > 1000
