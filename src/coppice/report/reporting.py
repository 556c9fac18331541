"""Write a plan, a topology or a comparison as a page (.html), a picture (.svg) or a Graphviz graph (.dot).

Export topologies and trees to Graphviz: boxes are clusters, links are edges with their rates. The text is made for
``dot``; ``neato`` and ``sfdp`` take it as well. Names are quoted, never used as identifiers, so any topology gives a
valid file. A topology is written whole, whatever its size.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from coppice.arguments import checked
from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare as compare_algorithms
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.report.comparison import comparison_picture
from coppice.report.page import DEFAULT_SIZE_BYTES, comparison_html, report_html, topology_html
from coppice.report.svg import standalone
from coppice.report.topology.picture import topology_svg
from coppice.schedule.explanation import plan_loads
from coppice.schedule.files.set_file import PlanSet, plan_at
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify_plan
from coppice.simulation.models import Model, model_of
from coppice.text import parse_size, parse_sizes, rate_text
from coppice.topology.model import NodeKind, Topology

_SHAPES = {
    NodeKind.GPU: 'shape=box, style="rounded,filled", fillcolor="#dcebfa"',
    NodeKind.NIC: 'shape=box, style="rounded,filled", fillcolor="#e3f2e1"',
    NodeKind.SWITCH: 'shape=box, style=filled, fillcolor="#ece5f6"',
}
_CUT = 'color="#c0165a", style=dashed, penwidth=2'


def to_dot(topology: Topology, *, cut: Collection[int] = ()) -> str:
    """Convert a topology to the DOT language.

    Two opposite links of the same rate are one edge with two heads; the label is the rate in GB/s.

    Args:
        cut: Nodes of one side of a cut; links that cross it are dashed.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> print(to_dot(preset("path", gpus=2)))
        digraph "path of 2" {
          rankdir=BT;
          node [fontname="sans-serif", fontsize=11];
          edge [fontname="sans-serif", fontsize=9];
          n0 [label="gpu0", shape=box, style="rounded,filled", fillcolor="#dcebfa"];
          n1 [label="gpu1", shape=box, style="rounded,filled", fillcolor="#dcebfa"];
          n0 -> n1 [label="1", dir=both];
        }
        <BLANKLINE>
    """
    lines = [*_head(topology.name, "BT"), *_nodes(topology, range(topology.num_nodes))]
    side, index = set(cut), topology.link_index
    for (a, b), link in index.items():
        back = index.get((b, a))
        duplex = back is not None and topology.capacity[back] == topology.capacity[link]
        if duplex and a > b:
            continue
        attributes = [f"label={quoted(rate_text(topology.gb_per_s(link)))}"]
        if duplex:
            attributes.append("dir=both")
        if (a in side) != (b in side):
            attributes.append(_CUT)
        lines.append(f"  n{a} -> n{b} [{', '.join(attributes)}];")
    return "\n".join([*lines, "}", ""])


def tree_to_dot(forest: Forest, tree: int) -> str:
    """Convert a tree of a forest to the DOT language: arrows follow the data, labels show paths."""
    if not 0 <= tree < forest.num_trees:
        raise InputError(
            f"expected a tree from 0 to {forest.num_trees - 1}, found {tree}: choose one of them."
        )
    topology, edges = forest.topology, list(forest.edges(tree))
    root = int(forest.tree_root[tree])
    used = sorted({root, *(v for src, dst, _ in edges for v in (src, dst))})
    phase = Phase(int(forest.tree_phase[tree]))
    upward = phase is Phase.REDUCE
    name = f"{topology.name}: {phase.name.lower()} tree {tree}"
    lines = [*_head(name, "BT" if upward else "TB"), *_nodes(topology, used), f"  n{root} [penwidth=3];"]
    for src, dst, path in edges:
        via = ", ".join(topology.node_ids[v] for v in path[1:-1])
        lines.append(f"  n{src} -> n{dst} [tooltip={quoted(f'via {via}' if via else 'direct')}];")
    return "\n".join([*lines, "}", ""])


def quoted(text: str) -> str:
    r"""Quote text for DOT.

    >>> print(quoted('a "b" \\c'))
    "a \"b\" \\c"
    """
    safe = (
        text.replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("\n", "\\n")
        .replace("\r", " ")
        .replace("\0", " ")
    )
    return f'"{safe.encode(errors="replace").decode()}"'


def _head(name: str, direction: str) -> list[str]:
    return [
        f"digraph {quoted(name)} {{",
        f"  rankdir={direction};",
        '  node [fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]


def _nodes(topology: Topology, nodes: Iterable[int]) -> list[str]:
    """Nodes, those of a box in a cluster of their own."""
    by_host: dict[int, list[int]] = defaultdict(list)
    for v in nodes:
        by_host[int(topology.host[v])].append(v)
    lines = []
    for host in sorted(by_host):
        if host < 0:
            lines += [_node(topology, v, "  ") for v in by_host[host]]
            continue
        lines += [f"  subgraph cluster_{host} {{", f"    label={quoted(topology.hosts[host])};"]
        lines += [_node(topology, v, "    ") for v in by_host[host]]
        lines.append("  }")
    return lines


def _node(topology: Topology, v: int, indent: str) -> str:
    return f"{indent}n{v} [label={quoted(topology.node_ids[v])}, {_SHAPES[NodeKind(int(topology.kind[v]))]}];"


SUFFIXES = (".html", ".svg", ".dot")
"""Ends of names that say what is written."""

_Stage = Callable[[str], None]


@checked
def report(
    source: Any,
    path: str | os.PathLike[str] = "report.html",
    *,
    size: int | str = DEFAULT_SIZE_BYTES,
    compare: Comparison | str | Sequence[int] | None = None,
    synthesize: Sequence[str] = (),
    whole: Topology | None = None,
    model: Model | str | os.PathLike[str] | None = None,
    on_stage: _Stage | None = None,
) -> int:
    """Write a report; an interrupted write leaves the old file, or none.

    Args:
        source: A plan, which is verified first, or anything with a ``plan``, or the name of a plan file; a topology; or
            a comparison.
        path: File to write: a page (.html), or the topology with the bottleneck cut alone (.svg, .dot).
        size: Message size M of the timeline of a plan, in bytes or as text such as ``64M``.
        compare: Rivals of a plan on its page: a comparison, or the sizes at which all algorithms are compared.
        synthesize: Methods of synthesis whose schedules are compared as well, where sizes are given.
        whole: What the topology was before it lost nodes or links, which are then drawn as lost (not in .dot).
        model: What messages cost: a model, its name, or a file with one; None is the default.
        on_stage: Called with what goes on.

    Returns:
        Size of the file in bytes.

    Raises:
        CheckError: If the plan does not verify.
        InputError: If the name ends otherwise, the source cannot be drawn so, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InputError(
            f"expected a file called *{', *'.join(SUFFIXES)}, found {target.name!r}: choose such a name."
        )
    if compare is not None and target.suffix != ".html":
        raise InputError(
            f"`compare` belongs on a page, found {target.name!r}: leave it out, or write *.html."
        )
    if synthesize and (compare is None or isinstance(compare, Comparison)):
        raise InputError(
            "`synthesize` adds to a comparison at given sizes, found none: give `compare=1K:1G:4`, or leave it out."
        )
    content = report_text(
        source,
        target.suffix,
        size=size,
        compare=compare,
        synthesize=synthesize,
        whole=whole,
        model=model,
        on_stage=on_stage,
    ).encode()
    write_atomically(target, content)
    return len(content)


def report_text(
    source: Any,
    suffix: str,
    *,
    size: int | str = DEFAULT_SIZE_BYTES,
    compare: Comparison | str | Sequence[int] | None = None,
    synthesize: Sequence[str] = (),
    whole: Topology | None = None,
    model: Model | str | os.PathLike[str] | None = None,
    on_stage: _Stage | None = None,
) -> str:
    """Render a report in the format of one of :data:`SUFFIXES`; otherwise as :func:`report`.

    Raises:
        CheckError: If the plan does not verify.
        InputError: As :func:`report`.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> report_text(preset("ring", gpus=3), ".dot").splitlines()[0]
        'digraph "ring of 3" {'
    """
    stage = on_stage or (lambda _: None)
    size_bytes = parse_size(size, option="`size`") if isinstance(size, str) else size
    sizes = parse_sizes(compare, option="`compare`") if isinstance(compare, str) else compare
    found = getattr(source, "plan", source)
    if isinstance(found, str | os.PathLike):
        stage("reading the plan")
        found = plan_at(found, size_bytes)
    elif isinstance(found, PlanSet):
        found = found.at(size_bytes)
    if isinstance(found, Plan):
        if suffix == ".html":
            assumed = model_of(model)
            rivals = _compared(found, sizes, synthesize, assumed, stage)
            return report_html(
                found, size_bytes=size_bytes, comparison=rivals, whole=whole, model=assumed, on_stage=on_stage
            )
        stage("drawing")
        verify_plan(found).require_ok()
        cut = () if found.bound is None else found.bound.cut
        if suffix == ".dot":
            return to_dot(found.topology, cut=cut)
        return topology_svg(found.topology, loads=plan_loads(found), cut=cut, whole=whole)
    stage("drawing")
    if isinstance(found, Topology):
        if suffix == ".dot":
            return to_dot(found)
        return {".html": topology_html, ".svg": topology_svg}[suffix](found, whole=whole)
    if isinstance(found, Comparison) and suffix != ".dot":
        return comparison_html(found) if suffix == ".html" else standalone(comparison_picture(found))
    raise InputError(
        f"expected a plan, a topology, or a comparison (.html, .svg) to report on, found {type(source).__name__} "
        f"for {suffix}: make a plan with `coppice.plan`."
    )


def _compared(
    plan: Plan,
    wanted: Comparison | Sequence[int] | None,
    synthesize: Sequence[str],
    model: Model,
    stage: _Stage,
) -> Comparison | None:
    """All algorithms at the given sizes, in the circumstances of the plan."""
    if wanted is None or isinstance(wanted, Comparison):
        return wanted

    def on_progress(done: int, total: int, name: str) -> None:
        stage(f"comparing algorithms: {done} of {total} ({name})")

    relays = plan.parameters.get("relay_gpus") is True
    return compare_algorithms(
        plan.problem,
        sizes=wanted,
        synthesize=synthesize,
        model=model,
        relay_gpus=relays or None,
        in_network=False,
        on_progress=on_progress,
    )
