"""The forest planner: optimal spanning trees, with or without copying in switches."""
