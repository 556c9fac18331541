"""Drawings of topologies: places of nodes, lines of links, loads and the bottleneck cut."""
