"""`coppice algorithms`, and `coppice plan --algorithm` with every name that it lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run
from coppice.collectives import Collective


def names(run: Run, collective: str) -> list[dict[str, object]]:
    import json

    found = run("algorithms", "--collective", collective, "--json")
    assert found.code == 0
    return json.loads(found.out)


@pytest.mark.parametrize("collective", [collective.value for collective in Collective])
def test_every_name_plans_or_names_the_condition(run: Run, tmp_path: Path, collective: str) -> None:
    for entry in names(run, collective):
        assert collective in entry["collectives"]
        assert entry["ranks"] in ("any", "even", "power of two", "two")
        assert entry["roots"] in ("any", "none")
        plan = tmp_path / "plan.json"
        for gpus in (1, 6, 8):
            done = run(
                "plan",
                "star",
                "--set",
                f"gpus={gpus}",
                "-c",
                collective,
                "-a",
                str(entry["name"]),
                "-o",
                plan,
            )
            if done.code == 0:
                assert run("verify", plan).code == 0, (entry, gpus)
            else:
                assert done.code == 2, (entry, gpus, done.err)
                assert done.err.startswith("error: "), done.err
                assert done.err.count("\n") == 1
                assert entry["ranks"] != "any" or entry["topological"] or "needs" in done.err, done.err


def test_parameters_reach_the_algorithm(run: Run) -> None:
    planned = run(
        "plan", "star", "-c", "broadcast", "-a", "binary", "-p", "segments=3", "--root", "5", "--json"
    ).json
    assert planned["planner"] == "binary"
    assert planned["parameters"] == {"segments": 3, "order": "rank", "relay_gpus": False}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-a", "rign"), "did you mean ring?"),
        (("-a", "pat"), "algorithm pat performs all_gather, reduce_scatter, not all_reduce"),
        (("-a", "ring", "-p", "segments=2"), "has no parameter 'segments', only: none"),
        (("-a", "tree", "-p", "segments=0"), "expected a number >= 1, found '0'"),
        (("-a", "tree", "-p", "segments"), "expected --parameter KEY=VALUE"),
        (("-a", "ring", "--trees", "2"), "has no trees per root"),
        (("-a", "ring", "--in-network"), "switches do not help ring"),
        (("-a", "ring", "--order", "nearest"), "expected an order that is auto, rank or topology"),
        (("-a", "forest", "--relay-gpus"), "forest decides by itself"),
        (
            (
                "-a",
                "flow",
            ),
            "flow does not plan all_reduce: use forest",
        ),
    ],
)
def test_refusals(run: Run, arguments: tuple[str, ...], expected: str) -> None:
    done = run("plan", "star", "-c", "all_reduce", *arguments)
    assert done.code == 2
    assert expected in done.err


def test_rank_order_without_routes_falls_back_to_the_topology(run: Run) -> None:
    """On rails a ring in rank order would cross from one rail to another; entered on the same rail it runs."""
    shared = ("plan", "dgx-h100", "--boxes", "2", "-c", "all_reduce", "-a", "ring")
    refused = run(*shared, "--order", "rank")
    assert refused.code == 2
    assert "allow these with `--relay-gpus`" in refused.err
    assert run(*shared, "--json").json["parameters"]["order"] == "topology"
    assert run(*shared, "--order", "rank", "--relay-gpus", "--json").json["verified"] is True


def test_details_of_one(run: Run) -> None:
    shown = run("algorithms", "ring")
    assert shown.code == 0
    assert "Patarasuk" in shown.out
    assert run("algorithms", "nonsense").code == 2


def test_an_algorithm_that_needs_switches_is_measured_by_what_they_can_do(run: Run) -> None:
    """NVLS adds and copies in the switch: faster than any plan between ranks, and optimal with that help."""
    found = run("plan", "dgx-h100", "-c", "all_reduce", "-a", "nvls", "--json").json
    assert found["planned_inv_rate"] == "1/450"
    assert found["optimal"] is True
    assert run("plan", "dgx-h100", "-c", "all_reduce", "--json").json["planned_inv_rate"] == "7/1800"
    refused = run("plan", "dgx-a100", "-c", "all_reduce", "-a", "nvls")
    assert refused.code == 2
    assert "needs a switch with multicast and aggregate" in refused.err
