"""Plan files: the same plan gives the same bytes, and nothing but a whole, unedited file is read."""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.files.plan_file import decode_plan, encode_plan, read_plan, write_plan
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from schedule.builders import chain, forests, make_forest, ring_forest, ring_topology, star_forest

Edit = Callable[[dict[str, Any]], object]


def forest_plan() -> Plan:
    forest = ring_forest(4)
    problem = Problem(topology=forest.topology, collective=Collective.ALL_GATHER)
    bound = Bound(
        problem=problem,
        inv_rate=Fraction(3, 2),
        cut=(0, 1, 2),
        attainable=Fraction(3, 2),
        method="by hand",
        alternatives={"other": Fraction(7, 4)},
    )
    return Plan(
        problem=problem,
        inv_rate=Fraction(3, 2),
        forest=forest,
        bound=bound,
        planner="hand",
        parameters={"seed": 1, "exact": True, "note": "é", "trees": None, "tolerance": 0.5},
    )


def schedule_plan() -> Plan:
    forest = ring_forest(3, Collective.ALL_REDUCE)
    schedule = lower(forest)
    waits = np.zeros(schedule.num_transfers + 1, dtype=np.int64)
    waits[3:] = 2
    schedule = replace(schedule, after_start=waits, after=np.array([0, 1], dtype=np.int32))
    problem = Problem(topology=forest.topology, collective=Collective.ALL_REDUCE)
    return Plan(problem=problem, inv_rate=Fraction(2, 3), schedule=schedule, planner="hand")


def sealed(document: Any) -> bytes:
    """A file with this content and the right checksum, as somebody would make it on purpose."""
    if not isinstance(document, dict):
        return json.dumps(document).encode()
    members = [f'"{key}": {json.dumps(value)}' for key, value in document.items() if key != "sha256"]
    body = ("{" + ",\n".join(members)).encode()
    return body + b',\n"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def opened(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode_plan(plan))
    return document


def refusal(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        decode_plan(data, name="p.json")
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


@pytest.mark.parametrize("plan", [forest_plan(), schedule_plan()])
def test_round_trip(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    again = read_plan(path)
    assert encode_plan(again) == path.read_bytes() == encode_plan(plan)
    assert again.inv_rate == plan.inv_rate
    assert again.parameters == plan.parameters
    assert again.topology.sha256 == plan.topology.sha256
    body, old = again.body, plan.body
    for name, column in vars(old).items():
        if isinstance(column, np.ndarray):
            read = getattr(body, name)
            assert read.dtype == column.dtype, name
            assert np.array_equal(read, column), name
    report = verify(again)
    assert report.ok, report.failures
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    if plan.bound is not None:
        assert again.bound == replace(plan.bound, problem=again.problem)


def test_the_checksum_can_be_checked_by_a_stranger() -> None:
    data = encode_plan(forest_plan())
    document = json.loads(data)
    body = data[: data.rindex(b',\n"sha256"')]
    assert hashlib.sha256(body).hexdigest() == document["sha256"]
    assert sealed(document).endswith(data[-80:]) or json.loads(sealed(document)).keys() == document.keys()


def test_weights_demands_and_roots_survive(tmp_path: Path) -> None:
    trees = [chain(0, 3, 1, 1), chain(1, 3, 1, 2)]
    forest = make_forest(ring_topology(3), Collective.ALL_GATHER, trees)
    problem = Problem(topology=forest.topology, collective=Collective.ALL_GATHER, weights=(1, 2, 0))
    write_plan(Plan(problem=problem, inv_rate=Fraction(3), forest=forest), tmp_path / "w.json")
    again = read_plan(tmp_path / "w.json")
    assert again.problem.weights == (1, 2, 0)
    assert verify(again).ok
    rooted = make_forest(ring_topology(3), Collective.BROADCAST, [chain(2, 3, 1)])
    problem = Problem(topology=rooted.topology, collective=Collective.BROADCAST, root=2)
    again = decode_plan(encode_plan(Plan(problem=problem, inv_rate=Fraction(1), forest=rooted)), name="r")
    assert again.problem.root == 2
    lowered = Plan(problem=problem, inv_rate=Fraction(1), schedule=lower(rooted))
    again = decode_plan(encode_plan(lowered), name="r")
    assert again.schedule is not None
    assert again.schedule.root == 2
    assert verify(again).ok


def test_every_kind_of_node_survives() -> None:
    nodes = [
        Node(id="a", host="x", rank=1),
        Node(id="relay", host="y"),
        Node(id="b", host="y", rank=0),
        Node(id="s", kind=NodeKind.SWITCH, multicast=True),
        Node(id="n", kind=NodeKind.NIC, host="x"),
    ]
    links = [
        Link(src="a", dst="b", gb_per_s=Fraction(1, 3), latency_us=0.7),
        Link(src="b", dst="s", gb_per_s=Fraction(25), duplex=False),
    ]
    topology = Topology.of("odd", nodes, links, source="a drawing")
    forest = make_forest(topology, Collective.ALL_GATHER, [])
    plan = Plan(
        problem=Problem(topology=topology, collective=Collective.ALL_GATHER),
        inv_rate=Fraction(0),
        forest=forest,
    )
    again = decode_plan(encode_plan(plan), name="p")
    assert again.topology.sha256 == topology.sha256
    assert again.topology.source == "a drawing"


@given(forests(Collective.ALL_REDUCE))
@settings(max_examples=40, deadline=None)
def test_drawn_plans_round_trip(forest: Forest) -> None:
    problem = Problem(topology=forest.topology, collective=forest.collective)
    data = encode_plan(Plan(problem=problem, inv_rate=Fraction(10**9), forest=forest))
    again = decode_plan(data, name="p")
    assert encode_plan(again) == data
    assert verify(again).ok


def test_standard_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    write_plan(forest_plan(), "-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.buffer.getvalue())))  # type: ignore[attr-defined]
    assert read_plan("-").planner == "hand"


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(InputError, match="expected one plan, found the folder"):
        read_plan(tmp_path)
    with pytest.raises(InputError, match="cannot write"):
        write_plan(forest_plan(), tmp_path / "no" / "such" / "place.json")


def test_newer_version_truncation_and_edits_have_their_own_sentences() -> None:
    data = encode_plan(forest_plan())
    assert "newer" in refusal(data.replace(b'"version": 1', b'"version": 2', 1))
    assert "cut short" in refusal(data[: len(data) // 2])
    assert "edited or damaged" in refusal(data.replace(b'"weight":[1,1', b'"weight":[1,2', 1))
    assert "edited or damaged" in refusal(json.dumps(json.loads(data)).encode())
    assert "found a topology, which `coppice bound`" in refusal(
        b'{"format": "coppice-topology", "version": 1}'
    )
    assert 'expected format "coppice-plan"' in refusal(b'{"format": "x", "name": "coppice-plan"}')
    assert "version" in refusal(b'{"format": "coppice-plan"}')
    assert "found nothing" in refusal(b"")
    assert "found text that begins with '# Title'" in refusal(b"# Title")
    assert "$.version" in refusal(b'{"format": "coppice-plan", "version": "one"}')


def test_deep_nesting_is_refused() -> None:
    refusal(b"[" * 200_000)
    refusal(b'{"format": "coppice-plan", "version": 1, "x": ' + b"[" * 200_000)


FOREST_EDITS: list[tuple[Edit, str]] = [
    (lambda d: d["edges"]["src"].pop(), "edges.src"),
    (lambda d: d["edges"]["dst"].pop(), "edge_dst must have 24 rows"),
    (lambda d: d["edges"]["src"].__setitem__(3, 4), "edge_src[3]"),
    (lambda d: d["edges"]["src"].__setitem__(3, -1), "$.edges.src[3]"),
    (lambda d: d["edges"]["src"].__setitem__(3, "x"), "$.edges.src[3]"),
    (lambda d: d["edges"]["src"].__setitem__(3, 1.5), "$.edges.src[3]"),
    (lambda d: d["edges"]["src"].__setitem__(3, None), "$.edges.src[3]"),
    (lambda d: d["edges"]["src"].__setitem__(3, 2**70), "$.edges.src"),
    (lambda d: d["edges"]["tree"].__setitem__(0, 5), "ascending"),
    (lambda d: d["edges"]["tree"].__setitem__(-1, 8), "below 8"),
    (lambda d: d["edges"]["path"].__setitem__(0, 8), "edge_path[0]"),
    (lambda d: d["edges"].update(extra=[]), "$.edges"),
    (lambda d: d["edges"].pop("tree"), "$.edges"),
    (lambda d: d["trees"]["weight"].__setitem__(0, 0), "$.trees.weight[0]"),
    (lambda d: d["trees"]["weight"].__setitem__(0, 2**63), "$.trees.weight"),
    (lambda d: d["trees"]["weight"].append(1), "tree_weight must have 8 rows"),
    (lambda d: d["trees"]["phase"].__setitem__(2, "up"), "$.trees.phase[2]"),
    (lambda d: d["trees"]["root"].__setitem__(0, 9), "tree_root[0]"),
    (lambda d: d["paths"].__setitem__(0, [0]), "path_start[0]"),
    (lambda d: d["paths"].__setitem__(0, [0, 7]), "path_nodes"),
    (lambda d: d["paths"].__setitem__(0, 7), "$.paths[0]"),
    (lambda d: d.pop("edges"), "trees and edges"),
    (lambda d: d.pop("paths"), "paths"),
    (lambda d: d.update(transfers=opened(schedule_plan())["transfers"]), "trees and edges"),
    (lambda d: d.update(collective="all_gatherv"), "$.collective"),
    (lambda d: d.update(collective="broadcast"), "needs a root"),
    (lambda d: d.update(root=0), "no root"),
    (lambda d: d.update(weights=[1, 1]), "one weight for each"),
    (lambda d: d.update(demands=[[1]]), "all_to_all"),
    (lambda d: d.update(inv_rate="1.5"), "$.inv_rate"),
    (lambda d: d.update(inv_rate="-1"), "$.inv_rate"),
    (lambda d: d.update(inv_rate="1/0"), "$.inv_rate"),
    (lambda d: d.update(inv_rate=3), "$.inv_rate"),
    (lambda d: d["bound"].update(cut=[4]), "$.bound.cut[0]"),
    (lambda d: d["bound"].update(inv_rate="x"), "$.bound.inv_rate"),
    (lambda d: d["bound"]["alternatives"].update(x="y"), "$.bound.alternatives"),
    (lambda d: d["topology"]["links"].pop(), "another topology"),
    (lambda d: d["topology"]["links"][0].update(gb_per_s=2), "another topology"),
    (lambda d: d["topology"]["links"][0].update(to="nobody"), "$.topology.links[0]"),
    (lambda d: d.update(topology=[]), "$.topology"),
    (lambda d: d["provenance"].update(topology_sha256="0"), "another topology"),
    (lambda d: d["provenance"].update(parameters={"a": [1]}), "$.provenance.parameters"),
    (lambda d: d.update(surprise=1), "surprise"),
]


@pytest.mark.parametrize(("edit", "text"), FOREST_EDITS)
def test_sealed_nonsense_in_a_forest_is_named(edit: Edit, text: str) -> None:
    document = opened(forest_plan())
    decode_plan(sealed(document), name="p.json")
    edit(document)
    assert text in refusal(sealed(document))


SCHEDULE_EDITS: list[tuple[Edit, str]] = [
    (lambda d: d["transfers"]["src"].__setitem__(0, 3), "src[0]"),
    (lambda d: d["transfers"]["op"].__setitem__(0, 2), "$.transfers.op[0]"),
    (lambda d: d["transfers"]["chunk"].pop(), "chunk must have"),
    (lambda d: d["transfers"]["path"].__setitem__(0, -2), "$.transfers.path[0]"),
    (lambda d: d["transfers"]["step"].__setitem__(0, True), "$.transfers.step[0]"),
    (lambda d: d["transfers"]["after"].pop(), "after_start"),
    (lambda d: d["transfers"]["after"].__setitem__(0, [999]), "after"),
    (lambda d: d["chunks"]["slot"].__setitem__(0, 2), "chunk_slot"),
    (lambda d: d["chunks"]["share"].__setitem__(0, 0), "$.chunks.share[0]"),
    (lambda d: d["slot_weight"].pop(), "slot_weight must have 3 rows"),
    (lambda d: d.pop("chunks"), "slot_weight, chunks and transfers"),
]


@pytest.mark.parametrize(("edit", "text"), SCHEDULE_EDITS)
def test_sealed_nonsense_in_a_schedule_is_named(edit: Edit, text: str) -> None:
    document = opened(schedule_plan())
    decode_plan(sealed(document), name="p.json")
    edit(document)
    assert text in refusal(sealed(document))


def survives(data: bytes) -> bool:
    """The file is refused on purpose, or read and then verified without a crash; True if it was read."""
    try:
        plan = decode_plan(data, name="p.json")
    except InputError as error:
        sentence = str(error)
    else:
        verify(plan)
        return True
    assert "\n" not in sentence
    return False


@pytest.mark.parametrize("make", [forest_plan, schedule_plan])
def test_damaged_bytes_are_always_refused(make: Callable[[], Plan]) -> None:
    data = encode_plan(make())
    random_ = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(random_.randint(1, 4)):
            place = random_.randrange(len(damaged))
            match random_.randrange(4):
                case 0:
                    damaged[place] ^= 1 << random_.randrange(8)
                case 1:
                    del damaged[place : place + random_.randint(1, 50)]
                case 2:
                    damaged[place:place] = bytes(random_.randbytes(random_.randint(1, 5)))
                case _:
                    damaged[place:place] = damaged[: random_.randint(1, 80)]
        if bytes(damaged) != data:
            assert not survives(bytes(damaged))


STRANGE: list[Any] = [
    None, True, -1, 0, 1, 2, 3, 4, 7, 99, 2**31, 2**63, 2**64, 10**30, 1.5, 1e300, "", "x", "1/3",
    "broadcast", "\ud800", [], [0], [0, 1], [1, 0], [[]], [[0, 1]], {}, {"a": 1},
]  # fmt: skip


def scramble(value: Any, random_: random.Random) -> Any:
    """Change one thing somewhere inside a JSON value."""
    if isinstance(value, dict) and value and random_.random() < 0.9:
        key = random_.choice(list(value))
        if random_.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: scramble(value[key], random_)}
    if isinstance(value, list) and value and random_.random() < 0.9:
        place = random_.randrange(len(value))
        match random_.randrange(8):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value[:place], value[place], *value[place:]]
            case 2:
                return random_.sample(value, len(value))
            case _:
                return [*value[:place], scramble(value[place], random_), *value[place + 1 :]]
    return random_.choice(STRANGE)


@pytest.mark.parametrize("make", [forest_plan, schedule_plan])
def test_sealed_nonsense_never_crashes(make: Callable[[], Plan]) -> None:
    random_ = random.Random(2)
    original = opened(make())
    read = 0
    for _ in range(3000):
        document = original
        for _ in range(random_.randint(1, 2)):
            document = scramble(document, random_)
        read += survives(sealed(document))
    assert read > 50, "the scrambler should also leave files that can be read"


def test_plans_are_made_of_parts_that_belong_together() -> None:
    plan = forest_plan()
    with pytest.raises(InputError, match="found both"):
        replace(plan, schedule=lower(ring_forest(4)))
    with pytest.raises(InputError, match="found none"):
        replace(plan, forest=None)
    with pytest.raises(InputError, match="found one on"):
        replace(plan, forest=star_forest(4))
    with pytest.raises(InputError, match="expected a plan for all_gather"):
        replace(plan, forest=ring_forest(4, Collective.ALL_REDUCE))
    assert plan.algbw_gb_per_s == Fraction(8, 3)
