"""HTML page of an estimated iteration: breakdown, timeline, memory, bounds."""
