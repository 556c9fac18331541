"""Change plan files at random and hold the verifier against a judge that shares no code with it.

`python tests/plan_mutants.py --count 100000 --seed 1` prints what came of the mutants; the exit status is 1 where the
verifier accepts what is wrong, or claims what is not true. tests/schedule/verification/test_mutations.py runs some.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from coppice.bounds.problem import Problem
from coppice.errors import CoppiceError
from coppice.planners.planning import plan
from coppice.planners.synthesis.synthesizing import synthesize
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference.plan_judge import Judged, Network, judge, least_time, necessary
from reference.plan_mutations import mutant, sealed


def _starved(*, copies: bool, adds: bool) -> Topology:
    """Three GPUs on a switch with other rates in than out."""
    nodes = [Node(id=name) for name in "abc"]
    nodes.append(Node(id="s", kind=NodeKind.SWITCH, multicast=copies, aggregate=adds))
    links = []
    for name in "abc":
        up, down = (1, 4) if copies or not adds else (4, 1)
        links.append(Link(src=name, dst="s", gb_per_s=Fraction(up), duplex=False))
        links.append(Link(src="s", dst=name, gb_per_s=Fraction(down), duplex=False))
    return Topology.of("starved", nodes, links)


def _uneven() -> Topology:
    """Four GPUs and a switch, links of different rates, one in one direction only."""
    ends = [("a", "b", 2), ("b", "c", 1), ("c", "d", 3), ("d", "a", 1), ("a", "s", 2), ("c", "s", 2)]
    links = [Link(src=x, dst=y, gb_per_s=Fraction(rate)) for x, y, rate in ends]
    links.append(Link(src="a", dst="c", gb_per_s=Fraction(1, 2), duplex=False))
    nodes = [*(Node(id=name) for name in "abcd"), Node(id="s", kind=NodeKind.SWITCH)]
    return Topology.of("uneven", nodes, links)


def seeds() -> Iterator[dict[str, Any]]:
    """Small plans of every kind, as JSON."""
    ring, star, uneven = preset("ring", gpus=4), preset("star", gpus=4), _uneven()
    helped = Topology.of(
        "helped",
        [
            *(Node(id=f"g{i}") for i in range(4)),
            Node(id="s", kind=NodeKind.SWITCH, multicast=True, aggregate=True),
        ],
        [Link(src=f"g{i}", dst="s", gb_per_s=Fraction(2)) for i in range(4)],
    )
    made: list[Any] = []
    made += [plan(each, name, ring=False) for each in (ring, star, uneven) for name in _COLLECTIVES]
    weights, demands = [3, 0, 1, 2], [[0, 2, 0, 1], [1, 0, 5, 0], [0, 0, 0, 3], [1, 1, 1, 0]]
    made += [
        plan(Problem(uneven, each, weights=weights), ring=False) for each in ("all_gather", "reduce_scatter")
    ]
    made += [plan(Problem(each, "all_to_all", demands=demands), ring=False) for each in (ring, uneven)]
    made += [
        plan(helped, each, in_network=True, ring=False)
        for each in ("all_gather", "reduce_scatter", "all_reduce")
    ]
    for copies, adds in ((False, False), (True, False), (False, True)):
        starved = _starved(copies=copies, adds=adds)
        for collective in ("all_gather", "reduce_scatter"):
            made.append(plan(starved, collective, trees=1, ring=False))
            made.append(plan(starved, collective, in_network=copies or adds, ring=False))
    made += [plan(uneven, each, trees=2, ring=False) for each in ("all_gather", "all_reduce", "broadcast")]
    made += [plan(star, each, algorithm=name) for each, name in _ALGORITHMS]
    made.append(plan(ring, "all_reduce", algorithm="recursive-doubling", relay_gpus=True))
    made.append(synthesize(ring, "all_gather", method="tacos"))
    made.append(synthesize(ring, "broadcast", method="blink"))
    for each in made:
        found = each.plan
        yield json.loads(encode_plan(found))
    for each in made[:4]:
        without = Plan(
            problem=each.plan.problem,
            inv_rate=each.plan.inv_rate,
            forest=each.plan.forest,
            schedule=each.plan.schedule,
            planner="anybody",
        )
        yield json.loads(encode_plan(without))
    yield _templates()
    yield _half_helped()


_SHOWN = 40
_COLLECTIVES = (
    *("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "gather"),
    "scatter",
)
_ALGORITHMS = (
    ("all_reduce", "ring"),
    ("all_reduce", "recursive-doubling"),
    ("all_gather", "bruck"),
    ("all_to_all", "pairwise"),
    ("barrier", "k-dissemination"),
)


def _templates() -> dict[str, Any]:
    """A ring's all-gather by one tree and its images, as docs/plan-format.md shows it."""
    document = json.loads(encode_plan(plan(preset("ring", gpus=4), "all_gather", ring=False).plan))
    one_way = {
        "symmetry": {"orders": [4], "generators": [[1, 2, 3, 0]]},
        "paths": [[0, 1], [1, 2], [2, 3]],
        "trees": {"root": [0], "weight": [1], "phase": ["broadcast"]},
        "edges": {"tree": [0, 0, 0], "src": [0, 1, 2], "dst": [1, 2, 3], "path": [0, 1, 2]},
    }
    first = {key: value for key, value in document.items() if key not in (*one_way, "sha256")}
    return {**first, "inv_rate": "3", **one_way}


def _half_helped() -> dict[str, Any]:
    """Trees that branch at a switch that copies, and yet are no faster than trees that do not."""
    helped = plan(_starved(copies=True, adds=False), "all_gather", in_network=True, ring=False)
    document = json.loads(encode_plan(helped.plan))
    paths: list[list[int]] = []
    edges: dict[str, list[int]] = {"tree": [], "src": [], "dst": [], "path": []}
    for root in range(3):
        one, two = (root + 1) % 3, (root + 2) % 3
        for nodes in ([root, 3], [3, one], [one, 3, two]):
            for name, value in zip(edges, (root, nodes[0], nodes[-1], len(paths)), strict=True):
                edges[name].append(value)
            paths.append(nodes)
    trees = {"root": [0, 1, 2], "weight": [1, 1, 1], "phase": ["broadcast"] * 3}
    first = {
        key: value for key, value in document.items() if key not in ("paths", "trees", "edges", "sha256")
    }
    return {**first, "inv_rate": "2", "paths": paths, "trees": trees, "edges": edges}


def outcome(document: dict[str, Any], known: dict[str, Any]) -> tuple[str, str]:
    """What came of a file, and why; the first word is "false" where the verifier is wrong.

    Args:
        document: The file.
        known: The file that it was made from, which is right: its time is reached where both ask the same.
    """
    try:
        found = decode_plan(sealed(document), name="mutant.json")
        report = verify(found)
    except CoppiceError as error:
        return _refused(document, str(error))
    if not report.ok:
        return _refused(document, report.failures[0])
    judged = judge(document)
    if judged.wrong:
        return "false accept", judged.wrong
    lie = _lie(document, known, found, report, judged)
    return ("false claim", lie) if lie else ("right and accepted", "")


def _refused(document: dict[str, Any], why: str) -> tuple[str, str]:
    try:
        wrong = judge(document).wrong
    except Exception:  # noqa: BLE001 (columns that are none: refusing is right)
        return "wrong and refused", why
    return ("wrong and refused" if wrong else "strictly refused"), why


def _lie(document: dict[str, Any], known: dict[str, Any], found: Plan, report: Report, judged: Judged) -> str:
    """A claim of the report that is not true, or nothing."""
    if judged.inv_rate is not None and report.inv_rate != judged.inv_rate:
        return f"it takes {judged.inv_rate}, not {report.inv_rate}"
    bound = document["bound"]
    if bound is None:
        return ""
    if report.bound_proved is None and document["collective"] not in ("all_reduce", "all_to_all"):
        return "its bound is not proved"
    if report.optimal and not report.bound_proved:
        return "it is optimal, and its bound is not proved"
    if report.proved_inv_rate is None:
        return ""
    network = Network.of(document["topology"])
    reached = [least_time(document)]
    same = _asked(document) == _asked(known)
    if same:
        original = judge(known)
        helps = "without copying" not in report.slower
        if not original.helped or helps:
            reached.append(original.inv_rate)
    if not judged.helped or "without copying" not in report.slower:
        reached.append(judged.inv_rate)
    best = min((each for each in reached if each is not None), default=None)
    if best is not None and report.proved_inv_rate > best:
        return f"it says that {report.proved_inv_rate} is necessary, and {best} is reached"
    if report.optimal and best is not None and report.inv_rate is not None and report.inv_rate > best:
        return f"it says that {report.inv_rate} is optimal, and {best} is reached"
    if report.bound_proved and Fraction(bound["inv_rate"]) > report.proved_inv_rate:
        return "its bound is proved, and more than what is"
    if report.bound_proved and not bound.get("proof"):
        counted = necessary(document, network, set(bound["cut"]))
        if counted is not None and counted < Fraction(bound["inv_rate"]):
            return f"its cut proves {counted} only"
    return _whole_lie(known, found, report, judged, same=same)


def _whole_lie(known: dict[str, Any], found: Plan, report: Report, judged: Judged, *, same: bool) -> str:
    """A claim about whole trees that is not true, or nothing."""
    if report.whole_trees is None or report.whole_trees_inv_rate is None:
        return ""
    if judged.helped:
        return "it claims for forests with help what holds without"
    if report.inv_rate is not None and report.inv_rate < report.whole_trees_inv_rate:
        return "it is faster than any forest of so many trees is said to be"
    body = found.forest
    if same and isinstance(body, Forest) and "trees" in known:
        original, per_root = judge(known), Counter(known["trees"]["root"])
        few = set(known["trees"]["weight"]) == {1} and max(per_root.values()) == report.whole_trees
        reached = original.inv_rate if few and not original.helped and report.whole_phases == 1 else None
        if reached is not None and reached < report.whole_trees_inv_rate:
            return f"{report.whole_trees} trees take {reached}"
    return ""


def run(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """What came of so many mutants, and those of which the verifier is wrong."""
    plans = list(seeds())
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    faults: list[str] = []
    for original in plans:
        verdict, why = outcome(original, original)
        if verdict != "right and accepted":
            faults.append(
                f"{original['collective']} by {original['provenance']['planner']} itself: {verdict}: {why}"
            )
    alike = [
        [other for other in plans if other is not each and _asked(other) == _asked(each)] for each in plans
    ]
    for number in range(count):
        original = plans[number % len(plans)]
        name, changed = mutant(original, rng, alike[number % len(plans)])
        verdict, why = outcome(changed, original)
        found[verdict] += 1
        if verdict == "strictly refused":
            found[f"  strictly: {_kind(why)}"] += 1
        if verdict.startswith("false"):
            faults.append(f"mutant {number} ({original['collective']}, {name}): {verdict}: {why}")
    return found, faults


def _asked(document: dict[str, Any]) -> list[Any]:
    """The problem of a file."""
    return [document[name] for name in ("collective", "root", "weights", "demands", "topology")]


def _kind(why: str) -> str:
    """A reason without its numbers and names."""
    return " ".join("N" if any(c.isdigit() for c in word) else word for word in why.split()[:9])


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description="Mutants of plan files, by the verifier and by a judge of its own."
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found, faults = run(asked.count, asked.seed)
    for name, number in sorted(found.items(), key=lambda pair: (pair[0].startswith(" "), -pair[1])):
        print(f"{number:8} {name}")
    for fault in faults[:_SHOWN]:
        print(fault)
    print(
        f"{len(faults)} of {asked.count} mutants, or seeds, show a fault of the verifier (seed {asked.seed})"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
