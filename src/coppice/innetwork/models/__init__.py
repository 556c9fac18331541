"""Closed forms of every system that aggregates in the network: what each reaches, needs and loses, and when it wins."""

from __future__ import annotations

from coppice.innetwork.models.case import AggregationCase
from coppice.innetwork.models.estimate import AggregationEstimate
from coppice.innetwork.models.systems import SYSTEMS, estimate, estimates

__all__ = ["SYSTEMS", "AggregationCase", "AggregationEstimate", "estimate", "estimates"]
