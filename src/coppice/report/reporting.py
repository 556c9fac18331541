"""Write a plan, a topology or a comparison as a page (.html), a picture (.svg) or a Graphviz graph (.dot)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coppice.arguments import checked
from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare as compare_algorithms
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.report.comparison import comparison_picture
from coppice.report.dot import to_dot
from coppice.report.page import DEFAULT_SIZE_BYTES, comparison_html, report_html, topology_html
from coppice.report.svg import standalone
from coppice.report.topology.picture import topology_svg
from coppice.schedule.explanation import plan_loads
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify_plan
from coppice.simulation.models import Model, model_of
from coppice.text import parse_size, parse_sizes
from coppice.topology.model import Topology

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
        found = read_plan(found)
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
