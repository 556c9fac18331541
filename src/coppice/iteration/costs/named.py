"""Collective costs by name, for ``--collectives``."""

from __future__ import annotations

from dataclasses import replace

from coppice.errors import InputError
from coppice.iteration.costs.chosen import forest_pick, known_algorithms, named_pick, nccl_pick
from coppice.iteration.costs.group import CollectiveCosts
from coppice.iteration.costs.simulated import SimulatedCosts
from coppice.iteration.machine import Cluster
from coppice.simulation.models import DEFAULT_MODEL, Model
from coppice.text import suggestion
from coppice.topology.model import Topology

CALIBRATED = "calibrated"
_CHOSEN = {"nccl": nccl_pick, "forest": forest_pick}


def costs_named(name: str, topology: Topology, *, model: Model = DEFAULT_MODEL) -> CollectiveCosts | None:
    """Look up collective costs; None means a cluster's calibrated rings.

    Args:
        name: ``calibrated``, ``nccl`` (what NCCL would pick), ``forest`` (our optimum) or an algorithm.
        model: What messages cost where they are simulated.
    """
    if name == CALIBRATED:
        return None
    if name in _CHOSEN:
        return SimulatedCosts(topology, _CHOSEN[name], model=model)
    names = known_algorithms()
    if name not in names:
        hint = suggestion(name, [CALIBRATED, *_CHOSEN, *names])
        known = ", ".join((CALIBRATED, *_CHOSEN))
        raise InputError(f"expected collectives that are {known} or an algorithm, found {name!r}: {hint}")
    return SimulatedCosts(topology, named_pick(name), model=model)


def with_collectives(
    cluster: Cluster, topology: Topology, name: str, *, model: Model = DEFAULT_MODEL
) -> Cluster:
    """Cluster with the named collective costs.

    Args:
        name: As for :func:`costs_named`.
    """
    return replace(cluster, costs=costs_named(name, topology, model=model))
