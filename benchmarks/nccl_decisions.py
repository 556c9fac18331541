"""What NCCL decides, from a topology file alone: picks, channels and times beside those of the library itself.

    python benchmarks/nccl_decisions.py --oracle FILE [--only TEXT] [--json] [--write]

FILE holds one machine shape a line: a topology file (its path from FILE's folder), a number of equal boxes, the devices
used, the NICs' rate where the file has none, and what NCCL decided there. Coppice gets the topology file, the number of
boxes, and the rate alone. Two seconds of a processor do for ten shapes.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coppice.collectives import Collective
from coppice.selection import SelectionRequest, select
from coppice.selection.nccl.graph import ChannelGraph
from coppice.selection.nccl.selecting import inputs_of
from coppice.topology.composition.compose import Host, compose, default_ports, repeated
from coppice.topology.composition.fabric import SwitchFabric
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.operations import subset
from tables import Table, replace_generated

PAGE = Path(__file__).with_suffix(".md")
COLLECTIVES = {each.dialects.nccl: each for each in Collective if each.dialects.nccl}
ALGORITHMS = {
    "TREE": "Tree",
    "RING": "Ring",
    "COLLNET_DIRECT": "CollNetDirect",
    "COLLNET_CHAIN": "CollNetChain",
    "NVLS": "NVLS",
    "NVLS_TREE": "NVLSTree",
    "PAT": "PAT",
}
PROTOCOLS = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
MODELS = {70: "v100", 80: "a100", 90: "h100", 100: "b200"}
PATTERNS = {
    "RING": "ring",
    "TREE": "tree",
    "NVLS": "nvls",
    "COLLNET_CHAIN": "collnet_chain",
    "COLLNET_DIRECT": "collnet_direct",
}
FIGURES = ("algorithm_protocol", "channels", "threads", "time_within_2")


@dataclass
class Score:
    """Cells that agree, of all."""

    cells: int = 0
    same: Counter[str] = field(default_factory=Counter)

    def add(self, agrees: dict[str, bool]) -> None:
        """Count one cell."""
        self.cells += 1
        self.same.update(name for name, holds in agrees.items() if holds)

    def percent(self) -> dict[str, Any]:
        """Share of the cells that agree, by figure."""
        names = {name: f"{name}_percent" for name in FIGURES}
        return {
            "cells": self.cells,
            **{key: _percent(self.same[name], self.cells) for name, key in names.items()},
        }


@cache
def machine(path: Path, gpu: str | None, nic_gb_per_s: float | None) -> Topology:
    """The topology of a file; options only where the file does not say it."""
    options: dict[str, Any] = {}
    text = path.read_text()
    if "<nvlink" not in text:
        options["gpu"] = gpu
    if "<net " not in text and nic_gb_per_s:
        options["nic_gb_per_s"] = str(nic_gb_per_s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load(path, self_links="drop", **options)


def cluster(row: dict[str, Any], folder: Path) -> Topology:
    """The boxes of a shape."""
    gpu = MODELS.get(row["compute_capability"])
    box = machine((folder / row["topology"]).resolve(), gpu, row["nic_gb_per_s"])
    if len(row["devices"]) < box.num_ranks:
        box = subset(box, row["devices"])
    if row["nodes"] == 1:
        return box
    return compose(
        repeated(Host(name="box", topology=box, ports=default_ports(box)), row["nodes"]),
        SwitchFabric(),
        name=row["label"],
    )


def settings_of(row: dict[str, Any]) -> dict[str, str]:
    """What a topology file cannot say: a driver without multicast."""
    return {} if row["multicast"] or row["compute_capability"] < 90 else {"nvls_channels": "0"}


def pattern(graph: ChannelGraph | None) -> dict[str, Any]:
    """A pattern as the file has it; zeros where it is not searched."""
    if graph is None:
        return {"nChannels": 0}
    return {
        "pattern": int(graph.pattern),
        "nChannels": graph.count,
        "bwIntra": graph.within,
        "bwInter": graph.across,
        "typeIntra": graph.within_type.name,
        "typeInter": graph.across_type.name,
        "sameChannels": int(graph.same),
        "crossNic": graph.cross_nic,
    }


def same_pattern(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether all figures of a pattern agree; numbers to five digits."""
    return all(
        abs(value - theirs[key]) <= 1e-5 * abs(theirs[key]) + 1e-9
        if isinstance(value, float)
        else value == theirs[key]
        for key, value in ours.items()
    )


@dataclass
class Shape:
    """What Coppice says of a shape, beside NCCL."""

    label: str
    topology: str
    score: Score
    by_collective: dict[str, Score]
    patterns: bool
    total_channels: bool
    rings: bool
    trees: bool
    differences: list[str]


def compared(row: dict[str, Any], folder: Path) -> Shape:
    """Ask Coppice for a shape."""
    topology, settings = cluster(row, folder), settings_of(row)
    hosts = SelectionRequest(
        collective=Collective.ALL_REDUCE,
        ranks=row["gpus"],
        size_bytes=1,
        boxes=row["nodes"],
        ranks_per_box=len(row["devices"]),
    )
    found = inputs_of(hosts, topology, settings).found
    graphs = found.boxes[0].graphs
    differences = []
    patterns = True
    for name, ours in PATTERNS.items():
        graph = getattr(graphs, ours)
        mine = pattern(None if name == "NVLS" and settings else graph)
        if not same_pattern(mine, row["patterns"][name]):
            patterns = False
            differences.append(f"{name}: {mine}, NCCL {row['patterns'][name]}")
    trees = [
        [
            {"rank": rank, "up": node.up, "down": [*node.down, -1, -1, -1][:3]}
            for rank, node in enumerate(tree)
        ]
        for tree in found.connections.trees
    ]
    shape = Shape(
        label=row["label"],
        topology=Path(row["topology"]).name,
        score=Score(),
        by_collective={},
        patterns=patterns,
        total_channels=found.communicator.channels == row["channels"],
        rings=[list(ring) for ring in found.connections.rings] == row["rings"],
        trees=trees == row["trees"],
        differences=differences,
    )
    for pick, agrees in picks(row, topology, settings):
        shape.score.add(agrees)
        shape.by_collective.setdefault(pick[0], Score()).add(agrees)
        missed = [name for name, holds in agrees.items() if not holds]
        if missed:
            differences.append(f"{pick[0]} of {pick[1]} bytes: {', '.join(missed)}")
    return shape


def picks(
    row: dict[str, Any], topology: Topology, settings: dict[str, str]
) -> Iterator[tuple[list[Any], dict[str, bool]]]:
    """Every pick of a shape, with what agrees."""
    for pick in row["picks"]:
        collective, size, algorithm, protocol, channels, threads, time_us = pick
        ours = select("nccl", COLLECTIVES[f"nccl{collective}"], size, topology=topology, settings=settings)
        cell = ours.cell
        assert cell is not None
        same = (cell.algorithm, cell.protocol) == (ALGORITHMS[algorithm], PROTOCOLS[protocol])
        yield (
            pick,
            {
                "algorithm_protocol": same,
                "channels": ours.channels == channels,
                "threads": ours.threads == threads,
                "time_within_2": abs(cell.model_us - time_us) <= 0.02 * time_us,
            },
        )


def _percent(part: int, of: int) -> float:
    return round(100 * part / of, 3) if of else 100.0


def totals(shapes: list[Shape], seconds: float) -> dict[str, Any]:
    """Figures of all shapes, by topology and by collective."""
    every = Score()
    topologies: dict[str, Score] = {}
    collectives: dict[str, Score] = {}
    for shape in shapes:
        for into in (every, topologies.setdefault(shape.topology, Score())):
            into.cells += shape.score.cells
            into.same.update(shape.score.same)
        for name, score in shape.by_collective.items():
            into = collectives.setdefault(name, Score())
            into.cells += score.cells
            into.same.update(score.same)
    count = len(shapes)
    return {
        "shapes": count,
        **every.percent(),
        **{
            f"{name}_percent": _percent(sum(getattr(shape, name) for shape in shapes), count)
            for name in ("patterns", "total_channels", "rings", "trees")
        },
        "processor_seconds": round(seconds, 1),
        "by_topology": {name: score.percent() for name, score in sorted(topologies.items())},
        "by_collective": {name: score.percent() for name, score in collectives.items()},
        "differences": {shape.label: shape.differences for shape in shapes if shape.differences},
    }


def table(found: dict[str, Any]) -> Table:
    """Agreement by topology file and by collective."""
    made = Table(
        title="What agrees with NCCL",
        header=("", "picks", "algorithm and protocol", "channels", "threads", "time within 2%"),
    )
    rows = [
        *found["by_topology"].items(),
        *((f"all, {name}", score) for name, score in found["by_collective"].items()),
        ("all", found),
    ]
    for name, score in rows:
        made.rows.append((name, f"{score['cells']:,}", *(f"{score[f'{key}_percent']:g}%" for key in FIGURES)))
    made.notes.append(
        f"Of {found['shapes']} shapes, {found['patterns_percent']:g}% have all patterns equal, "
        f"{found['total_channels_percent']:g}% the number of channels, {found['rings_percent']:g}% all rings and "
        f"{found['trees_percent']:g}% all trees."
    )
    for label, differences in found["differences"].items():
        made.notes.append(f"{label}: {len(differences)} differences, the first: {differences[0]}")
    return made


def main() -> None:
    """Print the figures, or write them into nccl_decisions.md as well."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--oracle", type=Path, required=True, help="file of shapes, one a line")
    parser.add_argument("--only", default="", help="only shapes whose label contains this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="rewrite the table in nccl_decisions.md")
    options = parser.parse_args()
    start = time.process_time()
    rows = [json.loads(line) for line in options.oracle.read_text().splitlines() if line.strip()]
    shapes = [compared(row, options.oracle.parent) for row in rows if options.only in row["label"]]
    found = totals(shapes, time.process_time() - start)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(table(found).text())
    if options.write:
        replace_generated(PAGE, "nccl_decisions.py", table(found).markdown())


if __name__ == "__main__":
    main()
