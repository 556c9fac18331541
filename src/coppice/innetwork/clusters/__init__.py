"""Aggregating systems on the links of a real topology: where their trees lie, and how long they take."""

from __future__ import annotations

from coppice.innetwork.clusters.modelled import ClusterSystem, cluster_system

__all__ = ["ClusterSystem", "cluster_system"]
