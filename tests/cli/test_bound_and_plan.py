"""`coppice bound`, `coppice plan` and `coppice algorithms`: what they print, write and refuse."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

import coppice
from cli.conftest import Run
from coppice.collectives import Collective
from support.paths import ROOT

BOUND_KEYS = {"collective", "ranks", "inv_rate", "algbw_gb_per_s", "algbw_exact", "trees_per_root", "cut"}
PLAN_KEYS = BOUND_KEYS | {
    *("planned_algbw_exact", "distinct_trees", "max_height", "mean_height", "max_link_load", "verified"),
    *("seconds", "peak_rss_bytes"),
}
FOREST_COLLECTIVES = [c for c in Collective if c.made_of_trees]


def test_bound_json_has_every_promised_key(run: Run, star: Path) -> None:
    found = run("bound", star, "--collective", "all_gather", "--json").json
    assert set(found) >= BOUND_KEYS
    assert found["collective"] == "all_gather"
    assert found["ranks"] == 4
    assert found["inv_rate"] == "3/25"  # three shards into d over 25 GB/s
    assert found["algbw_exact"] == "100/3"
    assert found["algbw_gb_per_s"] == pytest.approx(100 / 3)
    assert set(found["cut"]) >= {"a", "b", "c"}
    assert "d" not in found["cut"]


def test_bound_in_words(run: Run, star: Path) -> None:
    shown = run("bound", star, "-c", "all_gather")
    assert shown.code == 0
    assert "algbw 33.3333 GB/s (100/3), busbw 25 GB/s" in shown.out
    assert "GPU 3 receives through 1 link of 25 GB/s from hub: 3 shards over 25 GB/s" in shown.out


@pytest.mark.parametrize("collective", FOREST_COLLECTIVES)
def test_plan_json_has_every_promised_key(run: Run, star: Path, collective: Collective) -> None:
    found = run("plan", star, "--collective", collective, "--json").json
    assert set(found) >= PLAN_KEYS
    assert found["verified"] is True
    assert found["planned_algbw_exact"] == found["algbw_exact"]
    assert found["loss"] == "0"
    assert Fraction(str(found["max_link_load"])) == 1
    assert float(str(found["processor_seconds"])) > float(str(found["seconds"])) > 0
    assert int(str(found["peak_rss_bytes"])) > 10**6


def test_plan_text_says_what_an_engineer_asks(run: Run, star: Path) -> None:
    shown = run("plan", star, "-c", "all_gather").out
    for expected in (
        r"^all_gather on star \(4 ranks\)$",
        r"optimum +algbw 33.3333 GB/s \(100/3\), busbw 25 GB/s",
        r"bottleneck +GPU 3 receives through",
        r"forest +algbw 33.3333 GB/s .* optimal",
        r"gain over best ring +1x \(best ring algbw 33.3333",
        r"message size +\S+ \S+ for 50%, \S+ \S+ for 90% of the rate \(model nccl-2.30\)",
        r"trees +\d+ per root, \d+ distinct",
        r"height +\d at most, \S+ on average",
        r"worst link load +100%",
        r"verified +yes; optimal, proved: no schedule is faster",
        r"took +\S+ [mu]?s to plan, \S+ [mu]?s to verify, \S+ m?s of processor time in all, \S+ [MG]iB of memory",
    ):
        assert re.search(expected, shown, re.MULTILINE), expected
    assert "\x1b" not in shown  # plain where it is no terminal


def test_the_demo_is_proved_optimal(run: Run, tmp_path: Path) -> None:
    """What `make demo` plans and verifies: nothing is left to believe."""
    demo, made = ROOT / "examples" / "two-dgx-a100.json", tmp_path / "plan.json"
    planned = run("plan", demo, "--collective", "all_reduce", "-o", made)
    assert "verified             yes; optimal, proved: no schedule is faster" in planned.out
    verified = run("verify", made)
    assert re.search(r"^  bound +optimal, proved: no schedule is faster$", verified.out, re.MULTILINE)
    record = run("verify", made, "--json").json
    assert record["optimal"] is record["bound_proved"] is True
    assert record["proved_inv_rate"] == record["planned_inv_rate"] == "3/520"
    assert "claim" not in planned.out + verified.out


def test_what_switches_cannot_pass_on_is_proved_to_be_out_of_reach(run: Run, tmp_path: Path) -> None:
    """The cuts allow twice as much; the plan reaches all that there is, and a file says so by itself."""
    nodes = [{"id": v, "kind": "gpu"} for v in "abc"] + [{"id": "s", "kind": "switch"}]
    links = [{"from": v, "to": "s", "gb_per_s": 1, "duplex": False} for v in "abc"]
    links += [{"from": "s", "to": v, "gb_per_s": 4, "duplex": False} for v in "abc"]
    document = {"format": "coppice-topology", "version": 1, "name": "star", "nodes": nodes, "links": links}
    (tmp_path / "star.json").write_text(json.dumps(document))
    shown = run("plan", tmp_path / "star.json", "-c", "all_gather", "-o", tmp_path / "plan.json").out
    assert "optimal, as switches only pass on what they get" in shown
    assert "optimal, proved: no schedule is faster" in run("verify", tmp_path / "plan.json").out
    few = run("plan", "mi250", "-c", "all_gather", "--trees", "1", "-o", tmp_path / "few.json").out
    assert re.search(
        r"verified +yes; within .*% of optimal, proved; optimal with 1 tree per root, proved", few
    )


def test_fewer_trees_state_their_loss(run: Run) -> None:
    arguments = ("mi250", "--boxes", "1", "--collective", "all_gather")
    best = run("plan", *arguments, "--json").json
    few = run("plan", *arguments, "--trees", "1", "--json").json
    assert few["algbw_exact"] == best["algbw_exact"]
    assert few["trees_per_root"] == 1
    loss = 1 - Fraction(str(few["planned_algbw_exact"])) / Fraction(str(best["algbw_exact"]))
    assert 0 < loss == Fraction(str(few["loss"]))
    limit = run("bound", *arguments, "--trees", "1", "--json").json
    assert Fraction(str(limit["algbw_exact"])) >= Fraction(str(few["planned_algbw_exact"]))
    assert limit["optimum_algbw_exact"] == best["algbw_exact"]
    assert "below the optimum" in run("plan", *arguments, "--trees", "1").out


@pytest.mark.slow
def test_automatic_number_of_trees_keeps_its_promise(run: Run) -> None:
    arguments = ("plan", "mi250", "--boxes", "2", "-c", "all_gather", "--no-ring", "--json")
    tolerant = run(*arguments, "--trees", "auto:5%").json
    exact = run(*arguments).json
    assert int(str(tolerant["trees_per_root"])) < int(str(exact["trees_per_root"]))
    ratio = Fraction(str(exact["algbw_exact"])) / Fraction(str(tolerant["planned_algbw_exact"]))
    assert 1 < ratio <= Fraction(105, 100)


def test_demands_and_their_former_option(run: Run, star: Path, tmp_path: Path) -> None:
    demands = tmp_path / "demands.csv"
    demands.write_text("0,1,5,1\n1,0,5,1\n1,1,0,1\n1,1,5,0\n")
    planned = run("plan", star, "-c", "all_to_all", "--demands", demands, "--json")
    assert planned.json["verified"]
    assert planned.json["planned_algbw_exact"] == planned.json["optimum_algbw_exact"]
    assert planned.json["gain_over_direct"] == 1
    former = run("bound", star, "-c", "all_to_all", "--weights", demands, "--json")
    assert former.json["algbw_exact"] == planned.json["optimum_algbw_exact"]
    assert "--demands" in former.err
    both = run("bound", star, "-c", "all_to_all", "--weights", demands, "--demands", demands)
    assert both.code == 2
    assert "leave it out" in both.err


def test_weights_root_and_ranks(run: Run, star: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text("[1, 1, 1, 0]")
    weighted = run("bound", star, "-c", "all_gather", "--weights", weights, "--json").json
    assert weighted["inv_rate"] == "3/25"
    assert weighted["trees_per_root"] is None
    piped = run("bound", star, "-c", "all_gather", "--weights", "-", "--json", stdin=b"1\n1\n1\n0\n").json
    assert piped == weighted
    rooted = run("bound", star, "-c", "broadcast", "--root", "3", "--json").json
    assert (rooted["root"], rooted["inv_rate"]) == (3, "1/25")
    part = run("plan", star, "-c", "all_gather", "--ranks", "0,1,2", "--json").json
    assert (part["ranks"], part["planned_algbw_exact"], part["verified"]) == (3, "75", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--collective", "broadcast", "--root", "9"), "root"),
        (("--collective", "all_gather", "--root", "0"), "has no root"),
        (("--trees", "0"), "--trees"),
        (("--trees", "auto:x"), "--trees"),
        (("--ranks", "0,9"), "9"),
        (("--weights", "/does/not/exist"), "/does/not/exist"),
        (("--collective", "all_to_all", "--trees", "2"), "--trees"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    run: Run, star: Path, arguments: tuple[str, ...], said: str
) -> None:
    refused = run("plan", star, *arguments)
    assert refused.code == 2
    assert refused.out == ""
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1
    assert said in refused.err


def test_usage_errors_exit_with_2(run: Run, star: Path) -> None:
    for arguments in (("plan",), ("plan", star, "--collective", "all_gossip"), ("plan", star, "--nonsense")):
        assert run(*arguments).code == 2


def test_unknown_topology_and_unreachable_rank(run: Run, one_way: Path) -> None:
    assert run("bound", "no-such-thing").code == 2
    refused = run("bound", one_way, "-c", "all_gather")
    assert refused.code == 2
    assert "c" in refused.err
    assert run("bound", one_way, "-c", "broadcast", "--json").json["inv_rate"] == "1"


def test_plan_to_standard_output_is_the_plan_alone(run: Run, star: Path, tmp_path: Path) -> None:
    piped = run("plan", star, "-c", "all_gather", "-o", "-")
    assert json.loads(piped.out)["format"] == "coppice-plan"
    assert "optimum" in piped.err
    run("plan", star, "-c", "all_gather", "-o", tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == piped.out
    assert run("plan", star, "-o", "-", "--json").code == 2


def test_one_rank_has_nothing_to_do(run: Run, star: Path) -> None:
    for collective in FOREST_COLLECTIVES:
        found = run("plan", star, "--ranks", "0", "-c", collective, "--json")
        assert found.code == 0, found.err
        assert found.json["inv_rate"] == "0"
        assert found.json["verified"] is True
        assert run("plan", star, "--ranks", "0", "-c", collective).code == 0


def test_plan_tells_what_is_proved_about_its_number_of_trees(run: Run, star: Path) -> None:
    shown = run("plan", star, "-c", "all_gather", "--trees", "1", "--no-ring")
    assert re.search(r"trees +1 per root, \d+ distinct; nothing faster with as many\n", shown.out)
    shown = run("plan", star, "-c", "all_gather", "--trees", "auto:50%", "--no-ring")
    assert "; no fewer will do, nothing faster with as many\n" in shown.out
    shown = run("plan", star, "-c", "all_reduce", "--trees", "1", "--no-ring")
    assert "; nothing faster with as many in two phases\n" in shown.out
    found = run("plan", star, "-c", "all_gather", "--trees", "1", "--no-ring", "--json").json
    assert found["optimal_with_trees"] is True
    assert found["loss_with_trees"] == "0"


def test_plan_and_bound_tell_the_gap_where_links_are_lowered_greedily(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = {"g4": (0, 1, 16), "g3": (1, 4, 16), "g2": (2, 1, 2), "g1": (3, 4, 16)}
    nodes = [{"id": "sw", "kind": "switch"}]
    nodes += [{"id": name, "kind": "gpu", "rank": rank} for name, (rank, _, _) in sorted(ranks.items())]
    links = [
        {"from": name, "to": "sw", "gb_per_s": up, "duplex": False} for name, (_, up, _) in ranks.items()
    ]
    links += [
        {"from": "sw", "to": name, "gb_per_s": down, "duplex": False} for name, (_, _, down) in ranks.items()
    ]
    path = tmp_path / "star.json"
    path.write_text(json.dumps({"format": "coppice-topology", "version": 1, "nodes": nodes, "links": links}))
    arguments = (path, "-c", "broadcast", "--root", "1", "--trees", "1")
    assert "; nothing faster with as many\n" in run("plan", *arguments, "--no-ring").out
    monkeypatch.setattr("coppice.bounds.tree_optimum.SEARCHED_NODES", 0)
    assert "; within 50% of the best with as many\n" in run("plan", *arguments, "--no-ring").out
    assert "50% below that is known to be reached\n" in run("bound", *arguments).out


def test_plans_prefer_rate_or_height(run: Run, tmp_path: Path) -> None:
    """Two boxes of which one has lost a NIC: the best rate takes higher trees."""
    path = tmp_path / "dead.json"
    lost = run("topology", "degrade", "dgx-a100", "--boxes", "2", "--remove", "box1/nic0", "-o", path)
    assert lost.code == 0, lost.err
    words = ("plan", path, "-c", "all_reduce", "--no-ring", "--json")
    rate, low = run(*words, "--prefer", "rate").json, run(*words, "--prefer", "low").json
    assert rate["optimal"] is True
    assert rate == {
        **run(*words).json,
        **{key: rate[key] for key in rate if "seconds" in key or "rss" in key},
    }
    assert 3 * int(str(low["max_height"])) < 2 * int(str(rate["max_height"]))
    assert Fraction(str(low["loss"])) > 0
    assert low["verified"] is True
    refused = run(*words, "--prefer", "low", "--sizes", "1M")
    assert refused.code == 2
    assert "give one of them" in refused.err


def names(run: Run, collective: str) -> list[dict[str, object]]:
    found = run("algorithms", "--collective", collective, "--json")
    assert found.code == 0
    algorithms = found.json["algorithms"]
    assert isinstance(algorithms, list)
    return algorithms


@pytest.mark.parametrize("collective", [collective.value for collective in Collective])
@pytest.mark.spread(4)
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
        (("-a", "flow"), "flow does not plan all_reduce: use forest"),
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


@pytest.fixture
def files(run: Run, tmp_path: Path) -> tuple[Path, Path]:
    """A plan of two boxes, and the boxes with one NIC at half rate."""
    plan, slow = tmp_path / "plan.json", tmp_path / "slow.json"
    run("plan", "dgx-a100", "--boxes", "2", "-c", "all_gather", "--no-ring", "-o", plan)
    run("topology", "degrade", "dgx-a100", "--boxes", "2", "--node", "box0/nic3=50%", "-o", slow)
    return plan, slow


def test_a_repair_says_what_became_of_the_trees(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    plan, slow = files
    target = tmp_path / "new.json"
    shown = run("plan", slow, "--repair", plan, "-o", target).out
    assert "50% slower than before" in shown
    assert "made anew" in shown
    assert run("verify", target).code == 0
    found = run("plan", slow, "--repair", plan, "--json").json
    assert found["collective"] == "all_gather"
    assert found["verified"] is True
    assert found["optimum_computed"] is True
    trees = coppice.read_plan(target).trees
    assert found["trees_kept"] + found["trees_rerouted"] + found["trees_made_anew"] == len(trees)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trees", "2"), "found --trees as well"),
        (("-c", "all_reduce"), "found --collective all_reduce"),
        (("--root", "1"), "has root None, found --root 1"),
        (("--algorithm", "ring"), "found --algorithm as well"),
        (("--sizes", "1M"), "found --sizes as well"),
    ],
)
def test_options_that_contradict_the_plan_are_refused(
    run: Run, files: tuple[Path, Path], options: tuple[str, ...], words: str
) -> None:
    plan, slow = files
    result = run("plan", slow, "--repair", plan, *options)
    assert result.code == 2
    assert words in result.err


def test_the_plans_own_collective_may_be_named(run: Run, files: tuple[Path, Path]) -> None:
    plan, slow = files
    assert run("plan", slow, "--repair", plan, "-c", "all-gather").code == 0
