"""Aggregation switches in a lab: a process of `coppice switch serve` in the namespace of each switch of a tree."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction

import numpy as np

from coppice.errors import CheckError, InputError
from coppice.innetwork.clusters import SwitchTrees
from coppice.run.lab.namespaces import Lab
from coppice.run.processes import end_with_parent, stop
from coppice.topology.model import NodeKind, Topology

_PORT = 9000
_STARTS_S = 30.0
_LAST_WORDS_S = 2.0


def switch_parents(topology: Topology) -> tuple[dict[int, int], list[int]]:
    """Aggregation tree over the switches for all ranks.

    The tree whose busiest link is busy for the shortest time, if every switch could add; where a switch of it would
    have ranks as well as switches below it, its root alone.

    Returns:
        The switch above each switch, -1 above the root; and the switch of each rank.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> switch_parents(preset("star", gpus=3))
        ({3: -1}, [3, 3, 3])
    """
    switches: list[int] = np.flatnonzero(topology.kind == NodeKind.SWITCH).tolist()
    ranks: list[int] = topology.rank_nodes.tolist()
    tree = SwitchTrees(topology, switches).best(
        ranks, load=[Fraction(0)] * topology.num_links, share=Fraction(1)
    )
    if tree is None:
        raise InputError(
            f"expected a switch that all ranks of {topology.name!r} reach without other GPUs, found none."
        )
    below_ranks = {tree.above[rank] for rank in ranks}
    parents = {tree.root: -1}
    for node in sorted(below_ranks):
        while node != tree.root:
            parents[node] = tree.above[node]
            node = tree.above[node]
    if below_ranks & {parent for parent in parents.values() if parent >= 0}:
        return {tree.root: -1}, [tree.root] * len(ranks)
    return parents, [tree.above[rank] for rank in ranks]


@contextmanager
def standing_switches(
    lab: Lab, protocol: str, *, slots: int = 256, options: Sequence[str] = ()
) -> Iterator[list[str]]:
    """Run the switches, and yield each rank's switch address.

    Args:
        slots: Sums that can be under way in each.
        options: Further words for `coppice switch serve`.
    """
    parents, of_rank = switch_parents(lab.blueprint.topology)
    address = {node: f"{lab.blueprint.identity[node]}:{_PORT}" for node in parents}
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for node in _from_the_root(parents):
            own = ["--host", lab.blueprint.identity[node], "--port", str(_PORT), "--slots", str(slots)]
            parent = parents[node]
            if parent >= 0:
                siblings = [each for each in sorted(parents) if parents[each] == parent]
                own += ["--parent", address[parent], "--index", str(siblings.index(node))]
                own += ["--siblings", str(len(siblings))]
            processes[node] = subprocess.Popen(
                [
                    *("ip", "netns", "exec", lab.namespace(node), sys.executable, "-m", "coppice"),
                    *("switch", "serve", "--system", protocol, *own, *options),
                ],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
        for node, process in processes.items():
            _await(process, lab.blueprint.topology.node_ids[node])
        yield [address[node] for node in of_rank]
    finally:
        stop(list(processes.values()), last_words_s=_LAST_WORDS_S)
        for process in processes.values():
            if process.stdout is not None:
                process.stdout.close()


def _from_the_root(parents: Mapping[int, int]) -> list[int]:
    """Switches, each behind the one above it."""

    def depth(node: int) -> int:
        return 0 if parents[node] < 0 else 1 + depth(parents[node])

    return sorted(parents, key=lambda node: (depth(node), node))


def _await(process: subprocess.Popen[bytes], name: str) -> None:
    """Return when a switch listens."""
    deadline = time.monotonic() + _STARTS_S
    said = b""
    assert process.stdout is not None
    while b"listening" not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(process.stdout.fileno(), 4096) if ready else b""
        said += more
        if not more:
            words = said.decode(errors="replace").strip() or f"nothing within {_STARTS_S:g} s"
            raise CheckError(f"expected the switch {name} to listen, found: {words}")
