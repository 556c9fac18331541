"""Forest planner: optimal spanning trees, with or without switch multicast."""
