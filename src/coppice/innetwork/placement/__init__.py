"""Which switches of a network should add: the choice that loads the busiest link least, proved or bracketed."""

from coppice.innetwork.placement.placing import AggregationPlacement, BusiestLink, place_aggregation

__all__ = ["AggregationPlacement", "BusiestLink", "place_aggregation"]
