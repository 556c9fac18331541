"""In-network aggregation on a given topology: where each system's trees lie, and how long an all-reduce takes."""

from __future__ import annotations

from coppice.innetwork.clusters.modelled import ClusterSystem, cluster_system

__all__ = ["ClusterSystem", "cluster_system"]
