"""TACCL: sketches are read and kept, the stages verify and do not lose time, and nothing beats the bound."""

from __future__ import annotations

import copy
import itertools
import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from coppice.bounds import Problem
from coppice.bounds.latency import latency_bound
from coppice.cli import app
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.mip.greedy import LinkUse, greedy_sends
from coppice.planners.synthesis.mip.program import SearchLimits
from coppice.planners.synthesis.mip.routes import routes_of
from coppice.planners.synthesis.synthesizing import Request, Status, SynthesizedResult, synthesize
from coppice.planners.synthesis.taccl.chunks import best_chunks
from coppice.planners.synthesis.taccl.network import (
    CommunicationSketch,
    Costs,
    SketchedNetwork,
    read_sketch,
    suited_sketch,
    turned_rank,
)
from coppice.planners.synthesis.taccl.routing import RoutingProgram, Transfer, ordered
from coppice.planners.synthesis.taccl.stages import METHOD, joined_transfers, replayed
from coppice.planners.synthesis.timed import COLLECTIVES, copying_part
from coppice.schedule.files.plan_file import write_plan
from coppice.topology import preset
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.strategies import CONNECTED_FAMILIES, topologies
from support.alpha_beta import simulate

quick = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))

RELAY: dict[str, Any] = {
    "nnodes": 2,
    "intranode_sketch": {
        "strategy": "switch",
        "switches": [[0, 1, 2]],
        "switch_hyperedge_strategy": ["uc-min"],
    },
    "internode_sketch": {
        "strategy": "relay",
        "internode_conn": {"1": [0], "2": [2]},
        "gpus_to_sender_rev_map": {"1": [0, 1], "2": [2]},
        "enforce_ordering": True,
    },
    "symmetry_offsets": [[3, 6]],
    "hyperparameters": {"input_chunkup": 2},
}


def two_boxes(gpus: int = 3) -> Topology:
    """Two boxes of GPUs on a switch of 100 GB/s, all of them on a network of 10 GB/s."""
    nodes, links = [Node(id="net", kind=NodeKind.SWITCH)], []
    for box in "ab":
        nodes += [Node(id=f"{box}{i}", host=box) for i in range(gpus)]
        nodes.append(Node(id=f"{box}s", kind=NodeKind.SWITCH, host=box))
        links += [Link(src=f"{box}{i}", dst=f"{box}s", gb_per_s=Fraction(100)) for i in range(gpus)]
        links += [Link(src=f"{box}{i}", dst="net", gb_per_s=Fraction(10)) for i in range(gpus)]
    return Topology.of("two boxes", nodes, links)


def written(folder: Path, sketch: object) -> str:
    file = folder / "sketch.json"
    file.write_text(json.dumps(sketch))
    return str(file)


def changed(**parts: Any) -> dict[str, Any]:
    """The sketch with other parts; ``a__b`` is the field b of a."""
    sketch = copy.deepcopy(RELAY)
    for name, value in parts.items():
        *path, last = name.split("__")
        place = sketch
        for key in path:
            place = place[key]
        if value is None:
            place.pop(last)
        else:
            place[last] = value
    return sketch


def found(where: Topology | str, collective: str, **options: Any) -> SynthesizedResult:
    """What the method finds; no test depends on time."""
    return synthesize(where, collective, method="taccl", options={"nodes": 20, **options})


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "topology",
    [
        *(pytest.param(preset("ring", gpus=n), id=f"ring {n}") for n in (1, 2, 3, 5)),
        pytest.param(preset("star", gpus=4), id="star"),
        pytest.param(two_boxes(2), id="two boxes"),
    ],
)
def test_every_collective(topology: Topology, collective: Collective) -> None:
    result = found(topology, collective, remote_alpha_us=3.0)
    assert result.status is Status.SAT
    assert result.planned is not None
    assert result.planned.report.ok
    assert result.planned.loss >= 0
    details = result.synthesis.details
    assert details["predicted_us"] <= details["ordered_us"]
    size = int(result.problem.shards * 2**20)
    time_us = simulate(result.plan, size).time_us
    bandwidth_us = float(result.bound.inv_rate) * 2**20 / 1000
    assert time_us >= bandwidth_us * (1 - 1e-9)
    assert time_us >= latency_bound(result.problem, overhead_us=0.0).time_us * (1 - 1e-9)
    assert details["predicted_us"] >= bandwidth_us * (1 - 1e-9)


@quick
@given(topology=topologies(CONNECTED_FAMILIES))
def test_any_graph(topology: Topology) -> None:
    result = found(topology, "all_gather", nodes=1)
    assert result.planned is not None
    assert result.planned.report.ok
    assert result.planned.loss >= 0


def test_keeps_the_sketch(tmp_path: Path) -> None:
    sketch = read_sketch(written(tmp_path, RELAY), 6)
    topology = two_boxes()
    network = SketchedNetwork.of(topology, sketch, Costs(chunk_bytes=10**6))
    copying = copying_part(Problem(topology, Collective.ALL_GATHER), 2, backwards=False)
    hops = solved(copying, network)
    transfers = ordered(copying.pieces, network, hops)
    require_sound(copying, network, transfers)
    crossings = defaultdict(list)
    for each in sorted(transfers, key=lambda t: t.start):
        route = network.routes[each.route]
        if network.crosses(each.route):
            piece = copying.pieces[each.piece]
            assert (route.src % 3, route.dst % 3) in ((1, 0), (2, 2))
            assert piece.source // 3 == route.src // 3
            assert route.src % 3 == (2 if piece.source % 3 == 2 else 1)
            crossings[route.src].append(piece.source)
    assert crossings == {1: [1, 1, 0, 0], 2: [2, 2], 4: [4, 4, 3, 3], 5: [5, 5]}
    # The symmetry holds: what box a does, box b does, turned.
    piece_at = {(p.source, p.number): i for i, p in enumerate(copying.pieces)}
    for (p, v), number in hops.items():
        piece, route = copying.pieces[p], network.routes[number]
        image = piece_at[turned_rank(piece.source, 3, 6), piece.number]
        there = network.routes[hops[image, turned_rank(v, 3, 6)]]
        assert there.src == turned_rank(route.src, 3, 6)


def solved(copying: Any, network: SketchedNetwork) -> dict[tuple[int, int], int]:
    program = RoutingProgram(copying, network, horizon=1e5, least=0.0)
    hops = program.hops(program.program.solve(SearchLimits(nodes=100)))
    assert hops is not None
    return hops


def require_sound(copying: Any, network: SketchedNetwork, transfers: list[Transfer]) -> None:
    """Everything is sent after it has come, and no link carries two chunks at once (but those that go together)."""
    there = {(p, piece.source): 0.0 for p, piece in enumerate(copying.pieces)}
    busy: dict[int, set[tuple[float, float, int]]] = defaultdict(set)
    together: dict[tuple[int, float], int] = defaultdict(int)
    for each in transfers:
        together[each.route, each.start] += 1
    for each in sorted(transfers, key=lambda t: t.start):
        route = network.routes[each.route]
        assert there[each.piece, route.src] <= each.start + 1e-9
        there[each.piece, route.dst] = each.end
        count = together[each.route, each.start]
        for resource, held in network.use[each.route].items():
            busy[resource].add(
                (each.start, each.start + network.alpha[each.route] + count * held, each.route)
            )
    assert all((p, t) in there for p, piece in enumerate(copying.pieces) for t in piece.targets)
    for spans in busy.values():
        row = sorted(spans)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(row))


@pytest.mark.parametrize("alpha", [0.0, 1.0, 50.0, 1000.0])
def test_joining_saves_latency_and_nothing_else(alpha: float) -> None:
    topology = two_boxes()
    sketch = CommunicationSketch.checked(suited_sketch(topology), 6, where="the suited sketch")
    network = SketchedNetwork.of(topology, sketch, Costs(chunk_bytes=10**6, remote_alpha_us=alpha))
    copying = copying_part(Problem(topology, Collective.ALL_GATHER), 4, backwards=False)
    transfers = ordered(copying.pieces, network, solved(copying, network))
    require_sound(copying, network, transfers)
    apart = replayed(network, transfers, set())
    assert [(t.start, t.end) for t in apart] == [(t.start, t.end) for t in transfers]
    joined, _ = joined_transfers(copying.pieces, network, transfers, SearchLimits(nodes=50))
    after = replayed(network, transfers, joined)
    require_sound(copying, network, after)
    assert max(t.end for t in after) <= max(t.end for t in transfers) + 1e-6
    assert bool(joined) == (alpha > 0)
    groups: dict[tuple[int, float], int] = defaultdict(int)
    for each in after:
        if network.crosses(each.route):
            groups[each.route, each.start] += 1
    assert max(groups.values()) <= 6


def test_a_known_case_of_joining() -> None:
    """Two GPUs of a box send three chunks each over one link: with much latency in messages of three."""
    nodes = [Node(id=f"{box}{i}", host=box) for box in "ab" for i in range(1)]
    pair = Topology.of("pair", nodes, [Link(src="a0", dst="b0", gb_per_s=Fraction(1))])
    result = found(pair, "all_gather", chunks=3, chunk_size="1000", remote_alpha_us=10.0)
    details = result.synthesis.details
    assert (details["ordered_us"], details["predicted_us"], details["joined"]) == (33.0, 13.0, 4)


def test_routing_reaches_the_bound_on_rings() -> None:
    for gpus, hops in ((3, 1), (4, 2), (5, 2), (6, 3)):
        details = found(
            preset("ring", gpus=gpus), "all_gather", chunks=1, chunk_size="1000"
        ).synthesis.details
        assert details["predicted_us"] == pytest.approx(hops)
        assert details["routing_gap"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("strategy", ["minmax", "maxmin", "none"])
@pytest.mark.parametrize("conn", ["direct-map", "fully-connected"])
def test_every_strategy(tmp_path: Path, strategy: str, conn: str) -> None:
    sketch = changed(
        intranode_sketch={"strategy": strategy},
        internode_sketch={"strategy": "relay", "internode_conn": conn},
    )
    result = found(two_boxes(), "all_gather", sketch=written(tmp_path, sketch))
    assert result.planned is not None
    assert result.planned.report.ok


@pytest.mark.parametrize("strategy", ["uc-min", "uc-max", "freedom"])
def test_every_hyperedge_strategy(tmp_path: Path, strategy: str) -> None:
    sketch = changed(intranode_sketch__switch_hyperedge_strategy=[strategy])
    for collective in ("all_reduce", "all_to_all", "broadcast"):
        result = found(two_boxes(), collective, sketch=written(tmp_path, sketch), chunks=1)
        assert result.planned is not None
        assert result.planned.report.ok


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"nnodes": 4}, r"\$\.nnodes"),
        ({"nnodes": "two"}, r"\$\.nnodes"),
        ({"more": 1}, "more"),
        ({"internode_sketch": None}, r"\$\.internode_sketch"),
        ({"intranode_sketch__strategy": "relay-switch"}, r"\$\.intranode_sketch\.strategy"),
        ({"intranode_sketch__switches": [[0, 3]]}, r"switches\[0\]"),
        ({"intranode_sketch__switch_hyperedge_strategy": []}, "switch_hyperedge_strategy"),
        ({"internode_sketch__internode_conn": {"7": [0]}}, r"\$\.internode_sketch\.internode_conn"),
        ({"internode_sketch__internode_conn": {"1": [0, 0]}}, r"internode_conn\.1"),
        ({"internode_sketch__internode_conn": "ring"}, r"internode_conn"),
        ({"internode_sketch__gpus_to_sender_rev_map": {"0": [0, 1, 2]}}, "senders that internode_conn has"),
        ({"internode_sketch__gpus_to_sender_rev_map": {"1": [0, 1]}}, "a sender for every GPU"),
        ({"symmetry_offsets": [[1, 4]]}, r"symmetry_offsets\[0\]"),
        ({"symmetry_offsets": [[9, 6]]}, r"symmetry_offsets\[0\]"),
        ({"hyperparameters": {"input_chunkup": 0}}, "input_chunkup"),
        ({"multinode": {"nnodes": [2], "group_size": [2]}}, r"\$\.multinode"),
    ],
)
def test_refuses_a_sketch_with_its_place(tmp_path: Path, parts: dict[str, Any], words: str) -> None:
    file = written(tmp_path, changed(**parts))
    with pytest.raises(InputError, match=words) as refused:
        read_sketch(file, 6)
    assert file in str(refused.value)


def test_refuses_what_is_no_json_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "sketch.json"
    file.write_text('{"nnodes": 1,\n "intranode_sketch" }')
    with pytest.raises(InputError, match=r"sketch\.json:2:"):
        read_sketch(str(file), 4)
    file.write_text('{"nnodes": 1, "nnodes": 1, "intranode_sketch": {"strategy": "none"}}')
    with pytest.raises(InputError, match=r"'nnodes' twice"):
        read_sketch(str(file), 4)
    with pytest.raises(InputError, match="nowhere"):
        read_sketch(str(tmp_path / "nowhere.json"), 4)


def test_refuses_a_symmetry_that_is_none(tmp_path: Path) -> None:
    sketch = {"nnodes": 1, "intranode_sketch": {"strategy": "none"}, "symmetry_offsets": [[1, 4]]}
    with pytest.raises(InputError, match=r"symmetry_offsets\[0\]"):
        found(preset("path", gpus=4), "all_gather", sketch=written(tmp_path, sketch))


def test_refuses_connections_without_a_path(tmp_path: Path) -> None:
    sketch = changed(
        internode_sketch={"strategy": "relay", "internode_conn": "direct-map"}, symmetry_offsets=[]
    )
    sketch["intranode_sketch"] = {"strategy": "none"}
    sketch["nnodes"] = 2
    with pytest.raises(InputError, match="internode_conn"):
        found(preset("path", gpus=6), "all_gather", sketch=written(tmp_path, sketch))


PROFILE: dict[str, Any] = {
    "name": "small",
    "gpus_per_node": 3,
    "nics_per_node": 3,
    "alpha": 1,
    "node_betas_list": [4],
    "remote_alpha": 10,
    "remote_beta": 100,
}


def test_costs_of_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    topology = two_boxes()
    network = SketchedNetwork.of(topology, suited_sketch(topology), Costs(chunk_bytes=1, profile=str(file)))
    costs = {
        (network.crosses(number), network.alpha[number], network.beta[number])
        for number in range(len(network.routes))
    }
    assert costs == {(False, 1, 4), (True, 10, 100)}
    result = found(topology, "all_gather", profile=str(file))
    # Each GPU's chunk crosses once (110 us) and is passed on to two GPUs (5 us each).
    assert result.synthesis.details["predicted_us"] == pytest.approx(120)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"gpus_per_node": 4}, "gpus_per_node"),
        ({"node_betas_list": [1, 2]}, "node_betas_list"),
        ({"remote_beta": None}, "remote_beta"),
        ({"alpha": "slow"}, r"\$\.alpha"),
        ({"betas": [[1]]}, r"\$\.betas"),
    ],
)
def test_refuses_a_profile(tmp_path: Path, parts: dict[str, Any], words: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({**PROFILE, **parts}))
    with pytest.raises(InputError, match=words):
        found(two_boxes(), "all_gather", profile=str(file))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"chunks": 0}, "`chunks`"), ({"alpha_us": -1.0}, "`alpha_us`"), ({"chunk_size": "x"}, "chunk_size")],
)
def test_refuses_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        synthesize("ring", "all_gather", method="taccl", options=options)


def test_refuses_what_is_not_connected() -> None:
    with pytest.raises(UnreachableError):
        found(Topology.of("apart", [Node(id="a"), Node(id="b")], []), "all_gather")


def test_a_sketch_that_leaves_no_way(tmp_path: Path) -> None:
    topology = preset("path", gpus=4)
    sketch = {
        "nnodes": 2,
        "intranode_sketch": {"strategy": "none"},
        "internode_sketch": {
            "strategy": "relay",
            "internode_conn": {"1": [0], "0": []},
            "gpus_to_sender_rev_map": {"1": [1], "0": [0]},
        },
    }
    with pytest.raises(InputError):
        found(topology, "all_gather", sketch=written(tmp_path, sketch))


def test_same_input_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        write_plan(found(two_boxes(), "all_reduce", remote_alpha_us=20.0).plan, file)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.usefixtures("interrupted_solver")
def test_ctrl_c_keeps_the_best_found() -> None:
    result = found(two_boxes(), "all_reduce")
    assert result.synthesis.interrupted
    assert result.planned is not None
    assert result.planned.report.ok


def test_no_time_gives_a_first_schedule() -> None:
    result = synthesize(two_boxes(), "all_gather", method="taccl", time_limit_s=1e-9)
    assert result.status is Status.SAT


def test_greedy_waits_where_a_link_is_taken() -> None:
    pair = preset("path", gpus=2)
    copying = copying_part(Problem(pair, Collective.ALL_GATHER), 3, backwards=False)
    routes = routes_of(pair)
    use = [dict.fromkeys(route.links, LinkUse(slots=1, period=2.0)) for route in routes]
    sends = greedy_sends(copying.pieces, 2, routes, [5.0, 5.0], use)
    assert sorted(send.start for send in sends if send.route.src == 0) == [0.0, 2.0, 4.0]
    assert max(send.end for send in sends) == 9.0


@pytest.mark.parametrize(("name", "least_gb_per_s"), [("ndv2", 0.9 * 20.5), ("dgx-a100", 213)])
def test_presets_need_no_sketch(name: str, least_gb_per_s: float) -> None:
    """Two boxes: verified, not faster than anything can be, and no slower than what was published or measured."""
    result = found(preset(name, boxes=2), "all_gather", nodes=1)
    assert result.planned is not None
    assert result.planned.report.ok
    assert result.planned.loss >= 0
    once = 16 * 2**20 / result.synthesis.details["predicted_us"] / 1000
    assert least_gb_per_s <= once <= float(result.bound.algbw_gb_per_s)


def test_the_command(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        changed(hyperparameters={"input_chunkup": 1}, symmetry_offsets=[], nnodes=1, internode_sketch=None),
    )
    plan = tmp_path / "plan.json"
    words = ["synthesize", "star", "--set", "gpus=3", "--collective", "all_gather", "--method", "taccl"]
    run = CliRunner().invoke(
        app, [*words, "--sketch", file, "--chunk-size", "1M", "--time-limit", "300", "-o", str(plan)]
    )
    assert run.exit_code == 0, run.output
    assert "optimal for the program" in run.output
    assert CliRunner().invoke(app, ["verify", str(plan)]).exit_code == 0


def test_the_request_is_all_it_needs() -> None:
    problem = Problem(preset("ring", gpus=3), Collective.ALL_GATHER)
    said: list[str] = []
    answer = METHOD.run(Request(problem=problem, options=METHOD.read_options({}), on_progress=said.append))
    assert answer.status is Status.SAT
    assert any("stage 1" in each for each in said)


@pytest.mark.parametrize(
    ("topology", "chunks"),
    [(preset("dgx-1v"), 6), (preset("torus", dims=(3, 3)), 1), (preset("ring", gpus=4), 2)],
    ids=["dgx-1v", "torus", "ring"],
)
def test_chunks_that_suit_the_links_reach_the_optimum(topology: Topology, chunks: int) -> None:
    found = synthesize(topology, "all_gather", method="taccl", time_limit_s=60)
    assert found.synthesis.parameters["chunks"] == chunks
    assert found.gap == 0


def test_programs_of_many_ranks_get_few_chunks() -> None:
    for collective, most in (("all_gather", 2), ("all_to_all", 1)):
        assert best_chunks(Problem(preset("mi250", boxes=4), Collective(collective))) <= most
