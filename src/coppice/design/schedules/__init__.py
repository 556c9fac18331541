"""Schedules of direct-connect networks: breadth-first broadcast and expanded schedules."""
