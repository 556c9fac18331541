"""Describe a bound on time: what limits it in words, and its certificate as JSON values."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from coppice.bounds.latency import partners
from coppice.bounds.result import CutFamily, LinkLengths
from coppice.bounds.sizes.arrival import MovingCut
from coppice.bounds.sizes.crossings import Crossings
from coppice.bounds.sizes.least import TimeBound
from coppice.collectives import Collective
from coppice.text import plural, rate_text, shortened, size_text, time_text

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import LabelsJson, WitnessJson


def limit_words(bound: TimeBound) -> str:
    """What sets the least time, in one sentence.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.bounds.sizes.least import TimeBounds
        >>> from coppice.bounds.sizes.timed import MessageCosts
        >>> from coppice.topology.presets import preset
        >>> bounds = TimeBounds(Problem(preset("star", gpus=4, gb_per_s=10), "all_gather"), MessageCosts(message_us=2))
        >>> print(limit_words(bounds.least(0)))
        what gpu1 has is 2 us away from gpu0
        >>> print(limit_words(bounds.least(40_000)))
        29.3 KiB must enter gpu0 at 10 GB/s, and 2 us of latency
    """
    start = (
        f", after a start of {bound.costs.start_us:g} us" if bound.costs.start_us and bound.time_us else ""
    )
    if bound.cut is not None and bound.sinks:
        return _cut_words(bound, bound.cut) + start
    if bound.priced is not None and bound.time_us:
        if isinstance(bound.priced.witness, LinkLengths):
            return f"{bound.problem.collective} as a flow: the links of the bottleneck are full all the time{start}"
        if bound.priced.witness is None and bound.problem.collective is Collective.ALL_TO_ALL:
            share = size_text(float(bound.priced.work * bound.size_bytes))
            return (
                f"{share} must be sent in all, what is passed on again, by GPUs that send at most {_limit(bound)} GB/s "
                f"each{start}"
            )
        if bound.priced.witness is None:
            sends = plural(2 * bound.problem.topology.num_ranks - 2, "time")
            return f"all data must be sent {sends} by GPUs that send at most {_limit(bound)} GB/s each{start}"
        sets = len(bound.priced.witness.cuts)
        return f"all data must leave and enter each of {plural(sets, 'set')} of nodes once{start}"
    if bound.crossings is not None and bound.time_us:
        return _crossing_words(bound.crossings) + start
    if bound.growth is not None:
        return _growth_words(bound, bound.growth) + start
    return "nothing has to move"


def _growth_words(bound: TimeBound, direction: str) -> str:
    costs, spread = bound.costs, direction == "spread"
    others = partners(bound.problem)[0 if spread else 1]
    return (
        f"one GPU must {'inform' if spread else 'hear of'} {plural(others, 'other')} by messages of "
        f"{costs.message_us:g} us, and {plural(costs.workers, 'worker')} of a GPU "
        f"{'send' if spread else 'receive'} one each in {costs.send_us if spread else costs.receive_us:g} us"
    )


def _crossing_words(found: Crossings) -> str:
    """Who has to send to whom, when that can begin, and how fast it is in the end."""
    others = len(found.sources) - 1
    who = f"each box must receive from {plural(others, 'other')}, by two messages in a row or one of each"
    if not found.rows:
        return who
    first_ns = found.rows[0][0] / found.network.units
    return f"{who}, after {time_text(first_ns / 1000)} of latency"


def _cut_words(bound: TimeBound, cut: MovingCut) -> str:
    names, sink = bound.problem.topology.node_ids, bound.sinks[0]
    if not cut.rate and not bound.joint and not bound.boxed and len(bound.sinks) == 1:
        far = _early(cut)
        source = next(int(v) for v in bound.problem.topology.rank_nodes if far[v] and v != sink)
        ends = (names[sink], names[source]) if bound.turned else (names[source], names[sink])
        return f"what {ends[0]} has is {time_text(float(cut.time_ns / 1000))} away from {ends[1]}"
    moved = f"{size_text(float(cut.needed))} must {'leave' if bound.turned else 'enter'} "
    if bound.joint:
        moved += f"{_receivers(bound, cut)} in all"
    elif bound.boxed:
        moved += f"{_boxes(bound)} in all"
    else:
        moved += _final_side(bound, cut)
    if not cut.rate:
        return f"{moved} after {time_text(float(cut.time_ns / 1000))} of latency"
    idle = cut.time_ns - cut.needed / cut.rate
    latency = f", and {time_text(float(idle / 1000))} of latency" if idle > 0 else ""
    return f"{moved} at {rate_text(cut.rate)} GB/s{latency}"


def _representatives(bound: TimeBound) -> list[str]:
    """Names of the ranks that represent the sets of a proof by prices, or boxes whose messages are counted."""
    priced, names = bound.priced, bound.problem.topology.node_ids
    if bound.crossings is not None and bound.time_us:
        return [names[node] for node in bound.crossings.sources]
    if priced is None or not bound.time_us or not isinstance(priced.witness, CutFamily):
        return []
    return [names[node] for node in priced.representatives]


def _limit(bound: TimeBound) -> str:
    return rate_text(bound.costs.gpu_gb_per_s or Fraction(0))


def _receivers(bound: TimeBound, cut: MovingCut) -> str:
    """The ranks that the bytes of a joint cut are for (turned round: come from)."""
    topology, early = bound.problem.topology, _early(cut)
    names = [topology.node_ids[v] for v in topology.rank_nodes.tolist() if early[v]]
    return (
        "all GPUs" if topology.num_ranks - len(names) <= int(len(bound.sources) == 1) else shortened(names, 4)
    )


def _boxes(bound: TimeBound) -> str:
    """The boxes that the bytes of a cut for all boxes are for (turned round: come from), but for one."""
    topology = bound.problem.topology
    return plural(len(np.unique(topology.host[topology.rank_nodes])) - 1, "other box")


def _early(cut: MovingCut) -> np.ndarray:
    """Nodes with label 0."""
    early: np.ndarray = np.array(
        [
            (cut.time_ns * cut.units - offset if from_end else offset) == 0
            for offset, from_end in zip(cut.offset.tolist(), cut.from_end.tolist(), strict=True)
        ]
    )
    return early


def _final_side(bound: TimeBound, cut: MovingCut) -> str:
    """The side of the sink in the end, in few words."""
    topology = bound.problem.topology
    inside = [int(v) for v in topology.rank_nodes if cut.from_end[v]]
    names = [topology.node_ids[v] for v in inside]
    hosts = {int(topology.host[v]) for v in inside}
    if len(hosts) == 1 and min(hosts) >= 0 and len(inside) > 1:
        whole = int((topology.host[topology.rank_nodes] == min(hosts)).sum()) == len(inside)
        if whole:
            return topology.hosts[min(hosts)]
    return shortened(names, 4)


def witness_record(bound: TimeBound) -> WitnessJson:
    """The certificate as JSON values: exact numbers are texts, nodes go by name."""
    topology, costs = bound.problem.topology, bound.costs
    labels: list[LabelsJson] = []
    sinks: list[str] = []
    if bound.cut is not None and bound.sinks:
        sinks = [] if bound.joint or bound.boxed else [topology.node_ids[sink] for sink in bound.sinks]
        nodes: dict[tuple[int, bool], list[str]] = {}
        for v, name in enumerate(topology.node_ids):
            nodes.setdefault((int(bound.cut.offset[v]), bool(bound.cut.from_end[v])), []).append(name)
        labels = [
            {
                "offset_exact_us": str(Fraction(offset, 1000 * bound.cut.units)),
                "from_end": from_end,
                "node_names": names,
            }
            for (offset, from_end), names in sorted(nodes.items(), key=lambda each: (each[0][1], each[0][0]))
        ]
    proofs = {
        "moving-cut": labels,
        "prices": bound.priced,
        "crossings": bound.crossings,
        "growth": bound.growth,
    }
    kind = next((name for name, proof in proofs.items() if proof and bound.time_us), "none")
    return {
        "kind": kind,
        "protocol": costs.name or None,
        "launch_us": costs.start_us,
        "message_us": costs.message_us,
        "crossing_us": costs.crossing_us,
        "counts_links": costs.links,
        "expansion": float(costs.expansion),
        "workers": costs.workers,
        "send_us": costs.send_us,
        "receive_us": costs.receive_us,
        "gpu_gb_per_s": None if costs.gpu_gb_per_s is None else float(costs.gpu_gb_per_s),
        "sink": sinks[0] if len(sinks) == 1 else None,
        "sink_names": sinks,
        "source_names": [topology.node_ids[topology.rank_nodes[rank]] for rank in bound.sources],
        "representative_names": _representatives(bound),
        "turned": bound.turned,
        "joint": bound.joint,
        "boxed": bound.boxed,
        "needed_to_sink_bytes": None if bound.cut is None else str(bound.cut.needed),
        "labels": labels,
    }
