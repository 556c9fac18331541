"""Topologies whose drawings are looked at: every preset, and every real machine file that is there."""

from __future__ import annotations

import warnings

from coppice.topology.model import Topology
from coppice.topology.presets import PRESETS
from coppice.topology.sources import resolve
from support.shared_data import SHARED

FOLDER = SHARED / "topologies"

# What files leave open that name their GPUs by PCI class only, or report links of GPUs to themselves.
_OPTIONS = {
    "aws_p4d-24xl-topo.xml": {"gpu": "a100"},
    "azure_ndv4-topo.xml": {"gpu": "a100"},
    "azure_ndv5-topo.xml": {"gpu": "h100"},
    "azure_ncv4-topo.xml": {"self_links": "drop"},
}

FILES = tuple(sorted(path.name for path in FOLDER.glob("*.*"))) if FOLDER.is_dir() else ()
NAMES = tuple(PRESETS)


def of_file(name: str) -> Topology:
    """A real machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return resolve(str(FOLDER / name), options=_OPTIONS.get(name, {}))


def of_preset(name: str, boxes: int | None = None) -> Topology:
    """A preset, of several boxes if asked."""
    return resolve(name, boxes=boxes)
