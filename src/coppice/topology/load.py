"""Load a topology from a preset name, a file, text, bytes, a networkx graph, or a topology."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from coppice.arguments import checked, shown
from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.operations import round_rates, subset
from coppice.topology.presets import PRESETS
from coppice.topology.readers import read
from coppice.topology.readers.networkx_graph import from_networkx
from coppice.topology.sources import resolve_reading

_OF_GRAPHS = ("rate", "unit", "kind", "name")
"""Parameters of a networkx graph."""


@checked
def load(
    source: Any,
    *,
    boxes: int | None = None,
    rates: str | None = None,
    ranks: Sequence[int] | None = None,
    relays: bool = False,
    round_digits: int | None = None,
    **parameters: object,
) -> Topology:
    """Load a topology from a preset name, a file, text, bytes, a networkx graph, or a topology.

    Args:
        source: Name of a preset (``coppice topology list``); name of a file of any format that is read, ``-`` for
            standard input; the text or the bytes of such a file; a networkx graph; or a topology, or what has one (a
            problem, a plan), to change it.
        boxes: Number of boxes of a box preset.
        rates: ``nominal`` or ``measured``, for a preset or a file whose rates are guessed from names.
        ranks: Ranks that take part; they are numbered anew. None takes all.
        relays: GPUs that ``ranks`` leaves out may forward data, as switches do.
        round_digits: Decimals to which all rates (GB/s) are rounded.
        parameters: Parameters of the preset or options of the reader, such as ``gpus=8`` or ``dims="4x4"``; of a graph
            the attribute of edges with the ``rate`` and its ``unit`` (``rate="capacity", unit="Gb/s"``), and the
            ``kind`` of nodes that have none.

    Raises:
        InputError: If there is no such preset or file, it cannot be read, or an option does not go with it.
        MissingExtraError: If the source needs a package that is not installed.

    What a reader guessed or left out is told as a warning (:class:`UserWarning`).

    Examples:
        >>> load("dgx-a100", boxes=2).num_ranks
        16
        >>> load("torus", dims="4x4", ranks=[0, 1, 2, 3]).num_ranks
        4
    """
    options = {name: str(value) for name, value in parameters.items() if value is not None}
    if rates is not None:
        options["rates"] = rates
    topology = _made(source, boxes, options)
    if round_digits is not None:
        topology = round_rates(topology, round_digits)
    if ranks is not None:
        topology = subset(topology, list(ranks), relays=relays)
    return topology


def _made(source: Any, boxes: int | None, options: Mapping[str, str]) -> Topology:
    if isinstance(source, str) and not source.strip():
        raise InputError(
            "expected the name of a preset or file, or its text, found nothing: see `coppice topology list`."
        )
    if isinstance(source, (str, os.PathLike)) and not _is_text(source):
        reading = resolve_reading(os.fspath(source), boxes=boxes, options=options)
    elif isinstance(source, (str, bytes)):
        _refuse_options({"boxes": boxes}, "text of a file")
        reading = read(source.encode() if isinstance(source, str) else source, options=options)
    else:
        source = getattr(source, "topology", source)
        graph = _is_graph(source)
        if not graph and not isinstance(source, Topology):
            raise InputError(
                f"expected a preset, a file, text, a networkx graph or a Topology, found {shown(source)}: "
                f"give one, such as {next(iter(PRESETS))!r}."
            )
        if graph:
            named: dict[str, Any] = {key: options[key] for key in _OF_GRAPHS if key in options}
            _refuse_options({"boxes": boxes, **dict(options.items() - named.items())}, "graph")
            return from_networkx(source, **named)
        made: Topology = source
        _refuse_options({"boxes": boxes, **options}, "topology that is made already")
        return made
    for text in reading.warnings:
        warnings.warn(text, stacklevel=4)
    return reading.topology


def _is_text(source: str | os.PathLike[str]) -> bool:
    """Whether a string is the text of a file and not its name: several lines, or a bracket in front."""
    return isinstance(source, str) and ("\n" in source or source.lstrip()[:1] in ("{", "<"))


def _is_graph(source: object) -> bool:
    networkx = sys.modules.get("networkx")  # whoever has a graph has imported it
    return networkx is not None and isinstance(source, networkx.Graph)


def _refuse_options(given: Mapping[str, object], what: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"expected no `{name}` with a {what}, found {value}: leave it out.")
