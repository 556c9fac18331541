"""Orders of ranks: what they cross is counted independently, every file is read back, and no order beats the bound."""

from __future__ import annotations

import itertools
import json
import random
import re
from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest

from coppice.cli.export import export
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.export.formats import RankOrderOptions
from coppice.export.rank_order import LAUNCHERS, export_rank_order, rank_order_text
from coppice.fitting.put_signal import fit_put_signal
from coppice.fitting.rank_order import RankOrder, rank_order, read_groups
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.schedule.files.plan_file import write_plan
from coppice.simulation.put_signal import simulate_put_signal
from coppice.topology import subset
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from support.put_signal_cases import COLLECTIVES, forest


def shuffled_tree(seed: int, *, leaves: int = 3, gpus: int = 3) -> Topology:
    fabric = preset("fat-tree", leaves=leaves, gpus_per_leaf=gpus)
    ranks = list(range(fabric.num_ranks))
    random.Random(seed).shuffle(ranks)
    return subset(fabric, ranks)


def hosts_of(topology: Topology) -> list[str]:
    names = []
    for node in topology.rank_nodes.tolist():
        host = int(topology.host[node])
        names.append(topology.hosts[host] if host >= 0 else topology.node_ids[node])
    return names


def counted(topology: Topology, groups: list[tuple[int, ...]], gpus: tuple[int, ...]) -> int:
    """Links that the rings cross from host to host, by shortest paths in a graph."""
    graph = nx.DiGraph(list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)))
    host = hosts_of(topology)
    nodes = topology.rank_nodes.tolist()
    total = 0
    for group in groups:
        members: dict[str, list[int]] = {}
        for rank in group:
            members.setdefault(host[gpus[rank]], []).append(gpus[rank])
        boxes = list(members.values())
        if len(boxes) < 2:
            continue
        for here, there in zip(boxes, [*boxes[1:], boxes[0]], strict=True):
            total += min(nx.shortest_path_length(graph, nodes[a], nodes[b]) for a in here for b in there)
    return total


def check_is_an_order(found: RankOrder) -> None:
    topology = found.topology
    assert sorted(found.gpus) == list(range(topology.num_ranks))
    host = hosts_of(topology)
    assert [host[gpu] for gpu in found.gpus] == list(found.hosts)
    for name in set(host):
        own = [rank for rank, other in enumerate(found.hosts) if other == name]
        assert [found.local[rank] for rank in own] == list(range(len(own)))
        assert [found.gpus[rank] for rank in own] == sorted(found.gpus[rank] for rank in own)


@pytest.mark.parametrize("seed", range(4))
def test_links_are_counted_and_no_order_beats_the_bound(seed: int) -> None:
    topology = shuffled_tree(seed, leaves=2, gpus=3)
    found = rank_order(topology)
    check_is_an_order(found)
    everyone = [tuple(range(6))]
    assert found.before.links == counted(topology, everyone, tuple(range(6)))
    assert found.after.links == counted(topology, everyone, found.gpus)
    best = min(counted(topology, everyone, (0, *order)) for order in itertools.permutations(range(1, 6)))
    assert found.after.links == best
    assert found.bound is not None
    assert best - 2 < found.bound <= best


@pytest.mark.parametrize("whole", [True, False])
def test_groups_decide(whole: bool) -> None:
    """Groups with a stride are packed into hosts only where ranks of a host need not be consecutive."""
    topology = preset("dgx-h100", boxes=4)
    groups = read_groups("a=4,b=8:10", 32)
    found = rank_order(topology, groups=groups, whole_hosts=whole)
    check_is_an_order(found)
    members = [group.ranks for group in groups]
    assert found.after.links == counted(topology, members, found.gpus)
    assert found.before.links == counted(topology, members, tuple(range(32)))
    assert found.whole_hosts is whole
    heavy = [group.ranks for group in groups if group.name == "b"]
    crossed = counted(topology, heavy, found.gpus)
    assert (crossed == 0) is not whole
    assert found.after.weighted <= found.before.weighted


def test_never_worse_and_natural_where_nothing_is_gained() -> None:
    topology = preset("dgx-h100", boxes=3)
    found = rank_order(topology)
    assert found.gpus == tuple(range(24))
    for seed in range(4):
        mixed = shuffled_tree(seed)
        for text in ("tp=3,dp=3", "0-4;5-8", "a=9"):
            made = rank_order(mixed, groups=read_groups(text, 9))
            assert made.after.weighted <= made.before.weighted


def test_boxes_that_relay() -> None:
    """Without switches GPUs forward, and orders with fewer of them come first."""
    torus = preset("torus", dims=(3, 4))
    found = rank_order(torus)
    check_is_an_order(found)
    assert (found.after.relays, found.after.links, found.bound) == (0, 12, None)
    assert found.before.relays > 0


def read_back(text: str, launcher: str) -> list[str]:
    """Host of every rank, by the rules of the launcher."""
    lines = text.splitlines()
    assert text.endswith("\n")
    if launcher == "json":
        document = json.loads(text)
        assert [row["rank"] for row in document["ranks"]] == list(range(len(document["ranks"])))
        return [row["host"] for row in document["ranks"]]
    if launcher == "slurm":
        return lines
    if launcher == "hosts":
        return [line for line in lines for _ in range(8)]
    if launcher == "open-mpi":
        hosts, taken = [], set()
        for rank, line in enumerate(lines):
            match = re.fullmatch(r"rank (\d+)=(\S+) slot=(\d+)(?:-(\d+))?", line)
            assert match is not None
            assert int(match[1]) == rank
            for core in range(int(match[3]), int(match[4] or match[3]) + 1):
                assert (match[2], core) not in taken
                taken.add((match[2], core))
            hosts.append(match[2])
        return hosts
    if launcher == "mpich":
        hosts = []
        for line in lines:
            host, _, count = line.partition(":")
            assert host not in hosts, "Hydra fills host after host: a host stands once"
            hosts += [host] * int(count)
        return hosts
    assert launcher == "torchrun"
    assert lines[0].split("\t") == ["node_rank", "nproc_per_node", "first_rank", "host"]
    hosts = []
    for node, line in enumerate(lines[1:]):
        node_rank, count, first, host = line.split("\t")
        assert (int(node_rank), int(first)) == (node, len(hosts))
        hosts += [host] * int(count)
    return hosts


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_files_say_the_order(launcher: str) -> None:
    topology = preset("dgx-a100", boxes=3)
    ranks = [*range(16, 24), *range(8), *range(8, 16)]
    found = rank_order(subset(topology, ranks))
    assert read_back(rank_order_text(found, launcher), launcher) == list(found.hosts)


def test_cores_of_open_mpi() -> None:
    made = export_rank_order(preset("dgx-a100", boxes=2), RankOrderOptions(launcher="open-mpi", cores=4))
    assert "rank 9=box1 slot=4-7\n" in made.text
    assert len(read_back(made.text, "open-mpi")) == 16


@pytest.mark.parametrize("launcher", ["hosts", "mpich", "torchrun"])
def test_files_that_cannot_say_it(launcher: str) -> None:
    topology = preset("dgx-h100", boxes=2)
    found = rank_order(topology, groups=read_groups("a=2,b=8:10", 16), whole_hosts=False)
    assert not found.whole_hosts
    with pytest.raises(InputError, match="keeps the ranks of a host together"):
        rank_order_text(found, launcher)
    assert read_back(rank_order_text(found, "slurm"), "slurm") == list(found.hosts)


def test_names() -> None:
    made = export_rank_order(
        preset("dgx-h100", boxes=2), RankOrderOptions(launcher="mpich", names=("n07", "n03"))
    )
    assert made.text == "n07:8\nn03:8\n"
    with pytest.raises(InputError, match="2 different names"):
        export_rank_order(preset("dgx-h100", boxes=2), RankOrderOptions(names=("n07",)))
    with pytest.raises(InputError, match="letters, digits"):
        export_rank_order(preset("dgx-h100", boxes=2), RankOrderOptions(launcher="slurm", names=("a b", "c")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp=8", "multiply to 4 ranks"),
        ("tp", "expected groups such as"),
        ("tp=,dp=2", "expected axes"),
        ("tp=0,dp=2", "expected axes"),
        ("0-4", "ranks 0 .. 3"),
        ("0,1,0", "each rank once"),
        ("", "expected groups"),
    ],
)
def test_bad_groups(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_groups(text, 4)


def test_no_path() -> None:
    one_way = Topology.of(
        "one way", [Node(id="a"), Node(id="b")], [Link(src="a", dst="b", gb_per_s=Fraction(1), duplex=False)]
    )
    with pytest.raises(UnreachableError, match="from rank 1 to rank 0"):
        rank_order(one_way)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "hosts"
    export(
        "dgx-a100", to="rank-order", boxes=2, options=["launcher=slurm", "groups=tp=8,dp=2"], output=target
    )
    assert target.read_text() == "box0\n" * 8 + "box1\n" * 8
    assert "note: rings of tp, dp cross" in capsys.readouterr().err
    export("dgx-a100", to="rank-order", boxes=2, options=["launcher=mpich"])
    assert capsys.readouterr().out == "box0:8\nbox1:8\n"
    for options, words in (
        (["luncher=slurm"], "did you mean 'launcher'"),
        (["launcher=lsf"], "one of json"),
        (["cores=x"], "to be a whole number"),
        (["whole_hosts=1"], "yes or no"),
    ):
        with pytest.raises(InputError, match=words):
            export("dgx-a100", to="rank-order", options=options)
    with pytest.raises(InputError, match="no export 'rank-odrer': did you mean 'rank-order'"):
        export("dgx-a100", to="rank-odrer")


def test_command_takes_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from coppice import Collective, Problem, plan

    made = plan(Problem(topology=preset("dgx-a100"), collective=Collective.ALL_GATHER))
    write_plan(made.plan, tmp_path / "plan.json")
    export(str(tmp_path / "plan.json"), to="rank-order", options=["launcher=mpich"])
    assert capsys.readouterr().out == "box:8\n"
    with pytest.raises(InputError, match="leave out --boxes"):
        export(str(tmp_path / "plan.json"), to="rank-order", boxes=2)


@pytest.mark.parametrize("text", ["a=2,b=3", "0-3;2-5", "a=3,b=2:4"])
@pytest.mark.parametrize("seed", range(3))
def test_small_orders_are_the_best(text: str, seed: int) -> None:
    """Six hosts on two uneven leaves, groups that no walk through the switches knows of: all orders are tried."""
    fabric = preset("fat-tree", leaves=2, gpus_per_leaf=4)
    ranks = [0, 1, 2, 3, 4, 5]
    random.Random(seed).shuffle(ranks)
    topology = subset(fabric, ranks)
    groups = read_groups(text, 6)
    weights = {group.ranks: group.weight for group in groups}
    found = rank_order(topology, groups=groups)

    def weighted(order: tuple[int, ...]) -> int:
        return sum(weight * counted(topology, [members], order) for members, weight in weights.items())

    assert found.after.weighted == weighted(found.gpus)
    assert found.after.weighted == min(map(weighted, itertools.permutations(range(6))))


SIZE = 256 << 20


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.spread(2)
def test_what_is_found_verifies_and_is_not_slower_than_the_default(collective: Collective) -> None:
    body = forest("star", collective, (("gpus", 4), ("gb_per_s", 100)))
    found = fit_put_signal(body, SIZE, effort=20_000)
    report = verify_put_signal(found.program)
    assert report.ok
    assert report.graph_safe
    assert found.time_us == simulate_put_signal(found.program, body, SIZE).time_us
    assert found.time_us <= simulate_put_signal(lower_put_signal(body), body, SIZE).time_us
    assert Fraction(int(found.program.staging.max()), found.program.num_chunks) <= Fraction(1, 4)
    assert found.program.num_communicators == found.way.communicators


def test_a_box_scatters_sums_at_nearly_the_rate_of_the_plan() -> None:
    """One lane reaches half of it."""
    body = forest("dgx-a100", Collective.REDUCE_SCATTER)
    best_us = SIZE / 342.857 / 1e3
    found = fit_put_signal(body, SIZE, effort=60_000)
    assert found.time_us < best_us / 0.9
    assert simulate_put_signal(lower_put_signal(body), body, SIZE).time_us > best_us / 0.8


def test_what_is_given_stays() -> None:
    body = forest("star", Collective.ALL_REDUCE, (("gpus", 4), ("gb_per_s", 100)))
    found = fit_put_signal(body, SIZE, communicators=6, pieces=5, effort=20_000)
    assert (found.way.communicators, found.way.pieces, found.program.num_communicators) == (6, 5, 6)
    assert fit_put_signal(body, SIZE, groups=2, effort=20_000).way.groups == 2


def test_lanes_that_no_groups_divide_are_refused() -> None:
    body = forest("star", Collective.ALL_GATHER, (("gpus", 3), ("gb_per_s", 100)))
    with pytest.raises(InputError, match=r"expected `groups` to divide the 4 communicators, found 3\."):
        fit_put_signal(body, SIZE, communicators=4, groups=3)


def test_a_small_message_takes_no_pieces() -> None:
    """Staging memory that is little anyway is no reason to wait."""
    body = forest("star", Collective.ALL_REDUCE, (("gpus", 3), ("gb_per_s", 100)))
    found = fit_put_signal(body, 1024)
    assert (found.way.communicators, found.way.pieces) == (1, 1)
    assert found.time_us == simulate_put_signal(lower_put_signal(body, pieces=1), body, 1024).time_us
