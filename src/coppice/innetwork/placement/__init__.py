"""Placement of aggregation: which switches should add so that the busiest link is least loaded, proved or bounded."""

from coppice.innetwork.placement.placing import AggregationPlacement, BusiestLink, place_aggregation

__all__ = ["AggregationPlacement", "BusiestLink", "place_aggregation"]
