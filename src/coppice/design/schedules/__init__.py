"""Schedules of direct-connect networks: breadth-first broadcast, and those that follow from a base graph."""
