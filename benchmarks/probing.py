"""A network measured by `coppice probe` in the lab: has it the bottleneck cut of the true one?

    python benchmarks/probing.py [--only two-boxes] [--write]         (Linux, root; ten minutes)

The networks are those of benchmarks/lab.py. "Cut" is the side of the all-gather's bottleneck cut, as ranks. Networks
whose GPUs forward are given as what to expect, as the page about the lab advises; then `probe` measures their links.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.run.lab.launch import launch_ranks
from coppice.topology.model import Topology
from coppice.topology.operations import scale as scaled
from coppice.topology.readers import read_file
from lab import chosen_scale, machine, say, standing, topologies
from tables import rows_by_network

TABLE = Path(__file__).with_name("probing.md")
FORWARDING = ("ring", "mi250-half")

HEAD = """# Measured networks

`python benchmarks/probing.py --write` (Linux, root): every network is built by `coppice lab`, measured by
`coppice probe`, and bounded as measured. {machine}

"Rate" is the optimum of an all-gather: Mbit/s of every rank's shard. "Cut" is the side of its bottleneck cut that
sends, as ranks; where several cuts are equally tight, the measured network must have one of them: "same" says that the
true network's rate over the measured network's cut is its optimum.

| network | probe is told | true cut | measured cut | same | true rate | measured rate |
|---|---|---|---|---|---|---|
"""


def measured(name: str, topology: Topology) -> Topology:
    """What `coppice probe` makes of the network."""
    scale = chosen_scale(topology)
    with standing("benchprobing", topology, scale) as lab, tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "measured.json"
        command = [sys.executable, "-m", "coppice", "probe", "--engine", "torch", "-o", str(output)]
        if name in FORWARDING:
            command += ["--expect", str(lab.topology_file)]
        launch_ranks(lab, command, timeout_s=500, out=io.StringIO(), err=io.StringIO())
        return read_file(output)


def side(found: Bound) -> frozenset[int]:
    """Ranks on the sending side of the bottleneck cut."""
    sending = set(found.cut)
    return frozenset(
        rank for rank, node in enumerate(found.problem.topology.rank_nodes.tolist()) if node in sending
    )


def inv_rate_over(topology: Topology, ranks: frozenset[int]) -> Fraction:
    """Time per shard that the cut with these ranks on the sending side needs: the least over its switches."""
    import networkx as nx

    graph = nx.DiGraph()
    for link in topology.links():
        known = graph.get_edge_data(link.src, link.dst, {"capacity": Fraction(0)})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=known + link.gb_per_s)
    for rank, node in enumerate(topology.rank_nodes.tolist()):
        name = topology.node_ids[node]
        graph.add_edge(*(("from", name) if rank in ranks else (name, "to")))
    flow: Fraction = nx.maximum_flow_value(graph, "from", "to")
    return len(ranks) / flow


def words(ranks: frozenset[int]) -> str:
    """Ranks in ascending order."""
    return " ".join(map(str, sorted(ranks)))


def row(name: str, topology: Topology) -> str:
    """The row of one network."""
    say(name)
    truth = scaled(topology, chosen_scale(topology))
    true, found = (
        bound(Problem(topology=each, collective=Collective.ALL_GATHER))
        for each in (truth, measured(name, topology))
    )
    same = inv_rate_over(truth, side(found)) == true.inv_rate
    rates = [8000 / float(each.inv_rate) for each in (true, found)]
    told = "the network" if name in FORWARDING else "nothing"
    cells = [name, told, words(side(true)), words(side(found)), "yes" if same else "no"]
    return "| " + " | ".join([*cells, *(f"{rate:.1f}" for rate in rates)]) + " |\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="name of a network; may be repeated")
    parser.add_argument(
        "--write", action="store_true", help=f"write {TABLE.name}; networks left out keep their rows"
    )
    options = parser.parse_args(arguments)
    networks = topologies()
    found = rows_by_network(TABLE) if options.write and options.only else {}
    text = head = HEAD.format(machine=f"{machine()}.")
    for name in options.only or networks:
        found[name] = row(name, networks[name])
        text = head + "".join(found.get(each, "") for each in networks)
        if options.write:  # after every network: what was measured is not lost
            TABLE.write_text(text)
    print(text)
    return 1 if " | no | " in text else 0


if __name__ == "__main__":
    raise SystemExit(main())
