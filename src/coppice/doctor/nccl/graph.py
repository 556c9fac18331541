"""Doctor rules about graph files (``NCCL_GRAPH_FILE``): what the library takes as it is and never checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.tuning import Case, Complaint, Given, TuningRule
from coppice.export.nccl.graph import TYPES, NcclGraph, read_nccl_graph

__all__ = ["RULES"]

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@lru_cache(maxsize=4)
def _graphs(case: Case) -> tuple[NcclGraph, ...]:
    return read_nccl_graph(case.data, file=case.file)


def _too_many(case: Case) -> Iterator[Complaint]:
    most = case.given.most_channels // 2
    for graph in _graphs(case):
        if graph.nchannels > most:
            text = f"{graph.nchannels} channels for the {graph.kind} graph: they are doubled, and {2 * most} exist"
            yield ERROR, graph.line, text, f"keep {most} at most"


def _miscounted(case: Case) -> Iterator[Complaint]:
    for graph in _graphs(case):
        if graph.nchannels == 0:
            text = f"nchannels is 0: the {graph.kind} graph of the file is not used, the library searches one"
            yield WARNING, graph.line, text, f"write {len(graph.channels)}, or leave the graph out"
        elif graph.nchannels != len(graph.channels):
            text = f"nchannels is {graph.nchannels}, which is believed, and there are {len(graph.channels)} channels"
            yield ERROR, graph.line, text, f"write {len(graph.channels)}"


def _wrong_gpus(case: Case) -> Iterator[Complaint]:
    graphs = _graphs(case)
    count = case.given.gpus_of_host
    everyone = {gpu.dev for graph in graphs for channel in graph.channels for gpu in channel.gpus}
    expected = set(range(count)) if count is not None else everyone
    for graph in graphs:
        for channel in graph.channels:
            devs = [gpu.dev for gpu in channel.gpus]
            twice = sorted(dev for dev, times in Counter(devs).items() if times > 1)
            missing, extra = sorted(expected - set(devs)), sorted(set(devs) - expected)
            what = {"ring": "init fails"}.get(graph.kind, "the job hangs or fails")
            if twice:
                yield (
                    ERROR,
                    channel.line,
                    f"GPU {twice[0]} stands twice in a channel of the {graph.kind} graph: {what}",
                    ("name every GPU once"),
                )
            if graph.kind == "nvls":
                continue  # Only the first GPU of a channel counts.
            if missing:
                listed = ", ".join(map(str, missing[:8]))
                yield (
                    ERROR,
                    channel.line,
                    f"a channel of the {graph.kind} graph lacks GPU {listed}: {what}",
                    "add it",
                )
            if extra:
                listed = ", ".join(map(str, extra[:8]))
                yield (
                    ERROR,
                    channel.line,
                    f"there is no GPU {listed} on the host: init fails",
                    "numbers are hexadecimal",
                )


def _ranks(case: Case) -> Iterator[Complaint]:
    for graph in _graphs(case):
        lines = [gpu.line for channel in graph.channels for gpu in channel.gpus if gpu.rank is not None]
        if lines:
            text = f"{len(lines)} GPUs of the {graph.kind} graph have a rank, that of one node, which wins over dev"
            yield WARNING, lines[0], text, "remove the attribute rank"


def _types(case: Case) -> Iterator[Complaint]:
    for graph in _graphs(case):
        for name, text in (("typeintra", graph.type_intra), ("typeinter", graph.type_inter)):
            if text not in TYPES:
                words = f"{name} is {text[:40]!r}, read as the best class, LOC: LL128 may go on where it corrupts data"
                yield ERROR, graph.line, words, f"copy it from a dump, one of {', '.join(TYPES)}"


def _better(case: Case) -> Iterator[Complaint]:
    dump = {graph.id: graph for graph in read_nccl_graph(case.given.dump or b"", file="the dump")}
    for graph in _graphs(case):
        real = dump.get(graph.id)
        for name, text, seen in (
            ("typeintra", graph.type_intra, None if real is None else real.type_intra),
            ("typeinter", graph.type_inter, None if real is None else real.type_inter),
        ):
            if seen in TYPES and text in TYPES and TYPES.index(text) < TYPES.index(seen):
                words = f"{name} is {text}, in the dump it is {seen}: LL128 may go on where it corrupts data"
                yield ERROR, graph.line, words, f"write {seen}"


def _subgroups(case: Case) -> Iterator[Complaint]:
    most = max((len(channel.gpus) for graph in _graphs(case) for channel in graph.channels), default=0)
    for nodes, ranks in sorted(case.given.known_shapes):
        if ranks < nodes * most:
            text = f"a communicator of {ranks} ranks on {nodes} nodes has fewer GPUs of a node than {most}"
            fix = "set the variable around the creation of one communicator only"
            yield ERROR, 0, f"{text}: its init fails", fix


def _rails(case: Case) -> Iterator[Complaint]:
    for graph in _graphs(case):
        if graph.kind != "ring":
            continue
        for channel in graph.channels:
            if channel.entry != channel.exit:
                text = (
                    f"data leave by NIC {channel.exit} and reach NIC {channel.entry} of the next node, which reads "
                    "the same file: they change the rail"
                )
                yield WARNING, channel.line, text, "name the same NIC first and last"


def _has_dump(given: Given) -> bool:
    return given.dump is not None


RULES = (
    TuningRule(
        "G01", "half of the channels that exist", "channels are doubled past the end of a table", _too_many
    ),
    TuningRule(
        "G02", "nchannels is the number of channels", "missing ones are read from empty memory", _miscounted
    ),
    TuningRule("G03", "every GPU once", "rings are checked at init, trees not at all", _wrong_gpus),
    TuningRule("G04", "no ranks", "they belong to one node of one job", _ranks),
    TuningRule("G05", "types that exist", "unknown ones count as the best", _types),
    TuningRule(
        "G06",
        "types no better than those of the machine",
        "protocols depend on them",
        _better,
        _has_dump,
        "a dump",
    ),
    TuningRule(
        "G07",
        "whole nodes",
        "every communicator of the process reads the file",
        _subgroups,
        lambda given: bool(given.known_shapes),
        "shapes, a topology, or a log",
    ),
    TuningRule("G08", "rail-clean channels", "data cross between rails in the network", _rails),
)
