"""Doctor rules for graph files (``NCCL_GRAPH_FILE``), whose content the library never checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from coppice.doctor.framework import ERROR, WARNING, Complaint, Rulebook
from coppice.doctor.job_facts import DUMP, SHAPES, TuningFile
from coppice.export.nccl.graph import TYPES, NcclGraph, read_nccl_graph


class NcclGraphFile(TuningFile):
    """A graph file (``NCCL_GRAPH_FILE``) under examination."""

    @cached_property
    def graphs(self) -> tuple[NcclGraph, ...]:
        """Its graphs."""
        return read_nccl_graph(self.data, file=self.file)


RULES = Rulebook[NcclGraphFile]()
"""Rules about graph files."""


@RULES.rule("G01", ERROR, "half of the channels that exist", "channels are doubled past the end of a table")
def _too_many(file: NcclGraphFile) -> Iterator[Complaint]:
    most = file.facts.most_channels // 2
    for graph in file.graphs:
        if graph.nchannels > most:
            text = f"{graph.nchannels} channels for the {graph.kind} graph: they are doubled, and {2 * most} exist"
            yield graph.line, text, f"keep {most} at most"


@RULES.rule("G02", ERROR, "nchannels is the number of channels", "missing ones are read from empty memory")
def _miscounted(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        if graph.nchannels == 0:
            text = f"nchannels is 0: the {graph.kind} graph of the file is not used, the library searches one"
            yield WARNING, graph.line, text, f"write {len(graph.channels)}, or leave the graph out"
        elif graph.nchannels != len(graph.channels):
            text = f"nchannels is {graph.nchannels}, which is believed, and there are {len(graph.channels)} channels"
            yield ERROR, graph.line, text, f"write {len(graph.channels)}"


@RULES.rule("G03", ERROR, "every GPU once", "rings are checked at init, trees not at all")
def _wrong_gpus(file: NcclGraphFile) -> Iterator[Complaint]:
    graphs = file.graphs
    count = file.facts.gpus_of_host
    everyone = {gpu.dev for graph in graphs for channel in graph.channels for gpu in channel.gpus}
    expected = set(range(count)) if count is not None else everyone
    for graph in graphs:
        for channel in graph.channels:
            devs = [gpu.dev for gpu in channel.gpus]
            twice = sorted(dev for dev, times in Counter(devs).items() if times > 1)
            missing, extra = sorted(expected - set(devs)), sorted(set(devs) - expected)
            what = {"ring": "init fails"}.get(graph.kind, "the job hangs or fails")
            if twice:
                text = f"GPU {twice[0]} stands twice in a channel of the {graph.kind} graph: {what}"
                yield channel.line, text, "name every GPU once"
            if graph.kind == "nvls":
                continue  # Only the first GPU of a channel counts.
            if missing:
                listed = ", ".join(map(str, missing[:8]))
                text = f"a channel of the {graph.kind} graph lacks GPU {listed}: {what}"
                yield channel.line, text, "add it"
            if extra:
                listed = ", ".join(map(str, extra[:8]))
                text = f"there is no GPU {listed} on the host: init fails"
                yield channel.line, text, "numbers are hexadecimal"


@RULES.rule("G04", WARNING, "no ranks", "they belong to one node of one job")
def _ranks(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        lines = [gpu.line for channel in graph.channels for gpu in channel.gpus if gpu.rank is not None]
        if lines:
            text = f"{len(lines)} GPUs of the {graph.kind} graph have a rank, that of one node, which wins over dev"
            yield lines[0], text, "remove the attribute rank"


@RULES.rule("G05", ERROR, "types that exist", "unknown ones count as the best")
def _types(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        for name, text in (("typeintra", graph.type_intra), ("typeinter", graph.type_inter)):
            if text not in TYPES:
                words = f"{name} is {text[:40]!r}, read as the best class, LOC: LL128 may go on where it corrupts data"
                yield graph.line, words, f"copy it from a dump, one of {', '.join(TYPES)}"


@RULES.rule("G06", ERROR, "types no better than those of the machine", "protocols depend on them", needs=DUMP)
def _better(file: NcclGraphFile) -> Iterator[Complaint]:
    dump = {graph.id: graph for graph in read_nccl_graph(file.facts.dump or b"", file="the dump")}
    for graph in file.graphs:
        real = dump.get(graph.id)
        for name, text, seen in (
            ("typeintra", graph.type_intra, None if real is None else real.type_intra),
            ("typeinter", graph.type_inter, None if real is None else real.type_inter),
        ):
            if seen in TYPES and text in TYPES and TYPES.index(text) < TYPES.index(seen):
                words = f"{name} is {text}, in the dump it is {seen}: LL128 may go on where it corrupts data"
                yield graph.line, words, f"write {seen}"


@RULES.rule("G07", ERROR, "whole nodes", "every communicator of the process reads the file", needs=SHAPES)
def _subgroups(file: NcclGraphFile) -> Iterator[Complaint]:
    most = max((len(channel.gpus) for graph in file.graphs for channel in graph.channels), default=0)
    for nodes, ranks in sorted(file.facts.known_shapes):
        if ranks < nodes * most:
            text = f"a communicator of {ranks} ranks on {nodes} nodes has fewer GPUs of a node than {most}"
            fix = "set the variable around the creation of one communicator only"
            yield 0, f"{text}: its init fails", fix


@RULES.rule("G08", WARNING, "rail-clean channels", "data cross between rails in the network")
def _rails(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        if graph.kind != "ring":
            continue
        # With crossnic=2 the library exchanges channels 0 and 1, 2 and 3, ... on every other node.
        swapped = graph.crossnic == 2 and len(graph.channels) % 2 == 0
        for at, channel in enumerate(graph.channels):
            entry = graph.channels[at ^ 1].entry if swapped else channel.entry
            if entry == channel.exit:
                continue
            text = (
                f"data leave by NIC {channel.exit} and reach NIC {entry} of the next node, which reads "
                "the same file: they change the rail"
            )
            fix = "name the same NIC first and last"
            if swapped:
                text += " (with crossnic=2 pairs of channels change places on odd nodes)"
                fix = "let each channel of a pair begin with the NIC with which the other one ends"
            yield channel.line, text, fix
