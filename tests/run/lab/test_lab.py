"""A lab that stands: its links carry their rates, programs run in it, and nothing of it stays.

Needs root and a kernel with network namespaces, veth and tbf.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings

from coppice.errors import CheckError, InputError, UnreachableError
from coppice.planners.planning import plan
from coppice.run.lab.blueprint import Blueprint, draw, load_of
from coppice.run.lab.launch import launch_ranks
from coppice.run.lab.namespaces import STATE, Lab, build, check_links, find, link_bytes, remove, throttle
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from coppice.topology.routing import Router
from reference.strategies import topologies

NAME = f"t{os.getpid() % 10**6}"


def can_build() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a lab needs Linux and root"
    try:
        build(NAME, draw(preset("ring", gpus=2, gb_per_s=1), Fraction(1, 100)))
    except (InputError, OSError) as error:
        return f"this kernel builds no lab: {error}"
    remove(NAME)
    return None


reason = can_build()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


def namespaces() -> list[str]:
    return [each.name for each in Path("/run/netns").iterdir() if each.name.startswith(f"coppice-{NAME}-")]


@pytest.fixture
def ring() -> Iterator[Lab]:
    lab = build(NAME, draw(preset("ring", gpus=3, gb_per_s=5), Fraction(1, 1000)))
    yield lab
    remove(NAME)
    assert not namespaces()
    assert not (STATE / NAME).exists()


def test_links_carry_their_rates(ring: Lab) -> None:
    before = link_bytes(ring)
    found = check_links(ring)
    assert len(found) == 6
    for each in found:
        # A busy machine may be slower than the links; no stream can be faster than its link for long.
        assert 0.3 < each.measured_bits_per_s / each.bits_per_s < 1.25
    after = link_bytes(ring)
    assert set(after) == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert all(after[pair] > before[pair] + 500_000 for pair in after)


def test_links_let_through_at_once_what_is_said() -> None:
    drawn = draw(preset("ring", gpus=2, gb_per_s=5), Fraction(1, 1000))
    with pytest.raises(InputError, match="expected bursts of two packets"):
        build(NAME, drawn, burst_bytes=9000)
    lab = build(NAME, drawn, burst_bytes=20_000)
    try:
        shown = subprocess.run(
            ["tc", "-n", lab.namespace(0), "-j", "qdisc", "show"], capture_output=True, text=True, check=True
        )
        assert '"burst":20000' in shown.stdout.replace(" ", "")
    finally:
        remove(NAME)


def test_acknowledgements_wait_for_no_data() -> None:
    """Short packets have a queue of their own, which stays when rates change; data keep to the rate."""
    drawn = draw(preset("ring", gpus=2, gb_per_s=5), Fraction(1, 1000))
    try:
        lab = build(NAME, drawn, burst_bytes=20_000, acknowledgements_first=True)
    except InputError as error:
        pytest.skip(f"this kernel has one queue a link: {error}")
    try:
        throttle(lab, {(0, 1): 0.5}, burst_bytes=20_000)  # the queues stay
        found = {(each.src, each.dst): each.measured_bits_per_s for each in check_links(find(NAME))}
        assert 0.3 < found[0, 1] / 20e6 < 1.25
        throttle(find(NAME), {}, burst_bytes=20_000)
        shown = subprocess.run(
            ["tc", "-n", lab.namespace(0), "-s", "class", "show", "dev", "to1"],
            capture_output=True,
            text=True,
            check=True,
        )
        rows = re.findall(r"class htb 1:([12]) .*\n Sent (\d+) bytes (\d+) pkt", shown.stdout)
        (_, *short), (_, *long) = sorted(rows)
        assert 0 < int(short[0]) < 128 * int(short[1])
        assert int(long[0]) > 1000 * int(long[1])
        assert "rate 40Mbit" in shown.stdout
    finally:
        remove(NAME)


def test_ranks_see_themselves_and_only_the_lab(ring: Lab) -> None:
    out = io.StringIO()
    script = (
        "echo $RANK of $WORLD_SIZE $MASTER_ADDR $COPPICE_TOPOLOGY; ls /sys/class/net | tr '\\n' ' '; echo"
    )
    launch_ranks(ring, ["sh", "-c", script], out=out, timeout_s=300)
    lines = out.getvalue().splitlines()
    assert f"0 of 3 {ring.blueprint.identity[0]} {ring.topology_file}" in lines
    assert any(line.startswith("[2] 2 of 3 ") for line in lines)
    assert "id0 id1 lo to1 to2 " in lines


def test_a_failing_rank_is_named_and_the_others_stop(ring: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coppice.run.lab.launch._GRACE_S", 0.5)
    script = "if [ $RANK = 1 ]; then exit 3; fi; exec sleep 60"
    with pytest.raises(CheckError, match="rank 1 with 3"):
        launch_ranks(ring, ["sh", "-c", script])
    assert not running(ring)


def test_the_time_runs_out(ring: Lab) -> None:
    with pytest.raises(CheckError, match=r"ranks 0, 1, 2 still ran after 0.5 s"):
        launch_ranks(ring, ["sleep", "60"], timeout_s=0.5)
    assert not running(ring)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_after_the_command_ends(ring: Lab, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "coppice", "lab", "run", "--name", NAME, "--", "sleep", "600"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_until(lambda: len(running(ring)) >= 3)
    process.send_signal(how)
    process.communicate(timeout=300)
    wait_until(lambda: not running(ring))


def test_an_interrupted_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    lab = draw(preset("ring", gpus=3, gb_per_s=5), Fraction(1, 1000))
    monkeypatch.setattr("coppice.run.lab.namespaces.write_topology", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(NAME, lab)
    monkeypatch.undo()
    calls = 0
    real = subprocess.run

    def second_fails(*arguments: object, **keywords: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*arguments, **keywords)  # type: ignore[call-overload]

    monkeypatch.setattr("coppice.run.lab.namespaces.subprocess.run", second_fails)
    with pytest.raises(KeyboardInterrupt):
        build(NAME, lab)
    assert calls > 2
    assert not namespaces()
    assert not (STATE / NAME).exists()


def test_a_lab_whose_builder_was_killed_is_refused_and_removed() -> None:
    build(NAME, draw(preset("ring", gpus=3, gb_per_s=5), Fraction(1, 1000)))
    subprocess.run(["ip", "netns", "del", f"coppice-{NAME}-1"], check=True)
    with pytest.raises(InputError, match=r"expected 3 namespaces .* found 2"):
        find(NAME)
    with pytest.raises(InputError, match="stands already"):
        build(NAME, draw(preset("ring", gpus=3, gb_per_s=5), Fraction(1, 1000)))
    assert remove(NAME) == 2
    with pytest.raises(InputError, match="no lab named"):
        find(NAME)


def test_the_machine_itself_is_left_alone(ring: Lab) -> None:
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    assert ring.blueprint.identity[0] not in shown
    assert "to1" not in shown


def test_commands() -> None:
    def coppice(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coppice", "lab", *arguments], capture_output=True, text=True, check=False
        )

    try:
        refused = coppice("up", "dgx-a100", "--boxes", "2", "--scale", "1e-2", "--name", NAME)
        assert refused.returncode == 2
        assert "Gbit/s at all ranks together" in refused.stderr
        assert not namespaces()
        made = coppice(
            "up", "ring", "--set", "gpus=2", "--set", "gb_per_s=5", "--scale", "1/1000", "--name", NAME
        )
        assert made.returncode == 0, made.stderr
        assert "1 cables, 40 to 40 Mbit/s" in made.stdout
        ran = coppice("run", "--name", NAME, "--", "sh", "-c", "exit $RANK")
        assert ran.returncode == 1
        assert "rank 1 with 1" in ran.stderr
        assert "gpu0 -> gpu1" in coppice("bytes", "--name", NAME).stdout
    finally:
        gone = coppice("down", "--name", NAME)
    assert "removed 2 namespaces" in gone.stdout


def running(lab: Lab) -> list[str]:
    found: list[str] = []
    for node in lab.blueprint.rank_nodes:
        shown = subprocess.run(
            ["ip", "netns", "pids", lab.namespace(node)], capture_output=True, text=True, check=True
        )
        found += shown.stdout.split()
    return found


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


SWITCHED = f"s{os.getpid() % 10**6}"


def leaves_and_spine(leaves: int, ranks: int) -> Topology:
    """Leaves with so many ranks each, and a spine that can be the bottleneck."""
    nodes = [Node(id="spine", kind=NodeKind.SWITCH)]
    links = []
    for leaf in range(leaves):
        nodes.append(Node(id=f"leaf{leaf}", kind=NodeKind.SWITCH))
        links.append(Link(src=f"leaf{leaf}", dst="spine", gb_per_s=Fraction(1)))
        for rank in range(ranks):
            nodes.append(Node(id=f"gpu{leaf}.{rank}"))
            links.append(Link(src=f"gpu{leaf}.{rank}", dst=f"leaf{leaf}", gb_per_s=Fraction(1)))
    return Topology.of("leaves", nodes, links)


def test_which_switches_add_up() -> None:
    from coppice.run.lab.launch import switch_parents

    network = leaves_and_spine(2, 2)
    ids = network.node_ids
    parents, of_rank = switch_parents(network)
    assert {ids[node]: ids[above] if above >= 0 else "" for node, above in parents.items()} == {
        "spine": "",
        "leaf0": "spine",
        "leaf1": "spine",
    }
    assert [ids[node] for node in of_rank] == ["leaf0", "leaf0", "leaf1", "leaf1"]
    with pytest.raises(InputError, match=r"expected a switch that all ranks of .* reach"):
        switch_parents(preset("ring", gpus=4))


@pytest.mark.skipif(reason is not None, reason=str(reason))
def test_sums_through_leaves_and_spine() -> None:
    """Each cable between a leaf and the spine carries the tensor once each way, not once for each rank."""
    from coppice.run.lab.launch import launch_ranks, standing_switches

    network = leaves_and_spine(2, 2)
    lab = build(SWITCHED, draw(network, Fraction(1, 40)))
    size = 1 << 20
    try:
        with standing_switches(lab, "switchml") as addresses:
            before = link_bytes(lab)
            program = Path(__file__).parents[2] / "support" / "switched_sum.py"
            out = io.StringIO()
            launch_ranks(
                lab,
                [sys.executable, str(program), str(size // 4)],
                switches=addresses,
                timeout_s=120,
                out=out,
            )
            carried = {pair: count - before[pair] for pair, count in link_bytes(lab).items()}
    finally:
        remove(SWITCHED)
    assert out.getvalue().count("right") == 4
    ids = network.node_ids
    for (a, b), count in carried.items():
        if "spine" in (ids[a], ids[b]):
            assert count < 1.6 * size, (ids[a], ids[b])


def walk(lab: Blueprint, src: int, dst: int) -> list[int]:
    """The nodes through which the routes lead."""
    table = {(route.node, route.to): route for route in lab.routes}
    owner = {cable.end(node)[1]: node for cable in lab.cables for node in (cable.near, cable.far)}
    path = [src]
    while path[-1] != dst:
        route = table[path[-1], lab.identity[dst]]
        assert route.interface == f"to{owner[route.via]}"
        path.append(owner[route.via])
        assert len(path) <= lab.topology.num_nodes
    return path


def test_rates_are_scaled_per_direction() -> None:
    links = [Link(src="a", dst="b", gb_per_s=Fraction(5), duplex=False)]
    links += [Link(src="b", dst="a", gb_per_s=Fraction(10), duplex=False)]
    lab = draw(Topology.of("uneven", [Node(id="a"), Node(id="b")], links), Fraction(1, 1000))
    (first,) = lab.cables
    assert first.near_to_far_bits_per_s == 40_000_000
    assert first.far_to_near_bits_per_s == 80_000_000
    assert first.end(0) == ("to1", first.near_address, first.far_address, 40_000_000)
    assert first.end(1) == ("to0", first.far_address, first.near_address, 80_000_000)


def test_addresses_are_distinct() -> None:
    lab = draw(preset("dgx-a100", boxes=2), Fraction(1, 10_000))
    addresses = [*lab.identity, *(a for cable in lab.cables for a in (cable.near_address, cable.far_address))]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("fabric", ["rail", "switch"])
def test_routes_are_as_short_as_the_default_routing(fabric: str) -> None:
    topology = preset("dgx-a100", boxes=2, fabric=fabric)
    lab = draw(topology, Fraction(1, 10_000))
    nodes = lab.rank_nodes
    router, relayed = Router(topology), Router(topology, relay_gpus=True)
    for src in (0, 5, 12):
        for dst in range(16):
            if src != dst:
                path = walk(lab, nodes[src], nodes[dst])
                through = [v for v in path[1:-1] if topology.kind[v] == NodeKind.GPU]
                try:
                    assert len(path) == len(router.path(src, dst))
                    assert not through
                except UnreachableError:
                    assert len(path) == len(relayed.path(src, dst))
                    assert len(through) == 1


def test_routes_prefer_the_wider_of_equally_short_ways() -> None:
    nodes = [Node(id="a"), Node(id="b"), *(Node(id=name, kind=NodeKind.SWITCH) for name in ("thin", "wide"))]
    links = [
        Link(src=gpu, dst=switch, gb_per_s=Fraction(rate))
        for switch, rate in (("thin", 1), ("wide", 2))
        for gpu in ("a", "b")
    ]
    lab = draw(Topology.of("two ways", nodes, links), Fraction(1, 100))
    assert walk(lab, 0, 1) == [0, 3, 1]


@settings(max_examples=60, deadline=None)
@given(topologies())
def test_every_rank_is_reached_without_loops(topology: Topology) -> None:
    lab = draw(topology, Fraction(1, 100))
    for src in lab.rank_nodes:
        for dst in lab.rank_nodes:
            if src != dst:
                path = walk(lab, src, dst)
                assert len(set(path)) == len(path)


def test_refusals() -> None:
    ring = preset("ring", gpus=4, gb_per_s=10)
    with pytest.raises(InputError, match="choose a larger `scale`"):
        draw(ring, Fraction(1, 10**9))
    with pytest.raises(InputError, match="choose a smaller `scale`"):
        draw(ring, Fraction(10))
    with pytest.raises(InputError, match="scale above 0"):
        draw(ring, Fraction(0))
    with pytest.raises(InputError, match="at most 512 nodes"):
        draw(preset("ring", gpus=600), Fraction(1))
    one_way = Topology.of(
        "dead end", [Node(id="a"), Node(id="b")], [Link(src="a", dst="b", gb_per_s=Fraction(1), duplex=False)]
    )
    with pytest.raises(UnreachableError, match="from b to a"):
        draw(one_way, Fraction(1, 10))


def test_load_rule_counts_what_arrives_at_all_ranks() -> None:
    boxes = preset("dgx-a100", boxes=2)
    load = load_of(boxes, Fraction(1, 10_000), cores=2)
    assert (load.bits_per_s, load.limit_bits_per_s, load.fits) == (4_160_000_000, 5_000_000_000, True)
    assert not load_of(boxes, Fraction(1, 5_000), cores=2).fits
    assert load_of(boxes, Fraction(1, 5_000), cores=4).fits
    assert load_of(preset("ring", gpus=8), Fraction(1), cores=1).limit_bits_per_s == 5_000_000_000


@pytest.mark.parametrize("name", ["recursive-doubling", "ring", "forest"])
def test_transfers_take_the_routes_of_the_lab(name: str) -> None:
    topology = preset("ring", gpus=6)
    lab = draw(topology, Fraction(1, 100))
    algorithm = None if name == "forest" else name
    body = plan(topology, "all_reduce", algorithm=algorithm, relay_gpus=bool(algorithm), ring=False).plan.body
    taken = lab.routed(body)
    for src, dst, path in zip(taken.src.tolist(), taken.dst.tolist(), taken.path.tolist(), strict=True):
        nodes = taken.path_nodes[taken.path_start[path] : taken.path_start[path + 1]]
        assert nodes.tolist() == walk(lab, lab.rank_nodes[src], lab.rank_nodes[dst])
