"""Chakra execution traces (MLCommons): binary files, one a rank."""

from __future__ import annotations

import re

from coppice.export.chakra.reading import ChakraNode, ChakraNodeType, read_chakra
from coppice.iteration.totals import standard_collective
from coppice.iteration.traces.nodes import ExecutionTrace, TraceNode, TraceWork

_COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""By number (``CollectiveCommType`` of the schema)."""


def chakra_nodes(data: bytes, *, file: str, rank: int) -> ExecutionTrace:
    """The trace in a file.

    Nodes wait by their data dependencies, as the feeder of Chakra issues them; control dependencies name the node that
    called one, and bind nothing. Collectives of the host that have no size only launch those of the device.

    Args:
        rank: The rank, unless the header or the name of the file (``NAME.RANK.et``) says another.
    """
    header, nodes = read_chakra(data, file=file)
    told = re.search(r"\.(\d+)\.et$", file)
    own = header.get("rank")
    if isinstance(own, int):
        rank = own
    elif told is not None:
        rank = int(told[1])
    return ExecutionTrace(file=file, kind="Chakra", rank=rank, nodes=[_node(each) for each in nodes])


def _node(each: ChakraNode) -> TraceNode:
    """A node of the schema as one of ours."""
    on_host = bool(each.attributes.get("is_cpu_op", False))
    work, stream = TraceWork.COMPUTE, "device"
    group = str(each.attributes.get("pg_name", "") or each.attributes.get("comm_group", ""))
    collective, peer = "", -1
    size = each.whole("comm_size")
    if each.type is ChakraNodeType.COLL and not (on_host and not size):
        work, stream = TraceWork.COLLECTIVE, f"group {group}" if group else "collectives"
        number = each.whole("comm_type", -1)
        known = 0 <= number < len(_COLLECTIVES)
        collective = _COLLECTIVES[number] if known else standard_collective(each.name) or "collective"
    elif each.type is ChakraNodeType.SEND:
        work, stream, peer = TraceWork.SEND, "", each.whole("comm_dst", -1)
    elif each.type is ChakraNodeType.RECV:
        work, stream, peer = TraceWork.RECEIVE, "", each.whole("comm_src", -1)
    elif on_host:
        work, stream = TraceWork.HOST, f"thread {each.whole('tid')}"
    elif "stream" in each.attributes:
        stream = f"stream {each.whole('stream')}"
    return TraceNode(
        id=each.id,
        name=each.name[:80],
        work=work,
        after=each.data,
        seconds=each.duration_us / 1e6,
        stream=stream,
        collective=collective,
        size_bytes=size if work in (TraceWork.COLLECTIVE, TraceWork.SEND, TraceWork.RECEIVE) else 0,
        group=group,
        ranks=each.whole("pg_size") if work is TraceWork.COLLECTIVE else 0,
        peer=peer,
        tag=each.whole("comm_tag"),
    )
