"""Which switches of a network should add: the choice that loads the busiest link least, proved or bracketed."""

from coppice.innetwork.placement.placing import place_aggregation
from coppice.innetwork.placement.result import AggregationPlacement, BusiestLink

__all__ = ["AggregationPlacement", "BusiestLink", "place_aggregation"]
