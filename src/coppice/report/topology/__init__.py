"""Draw topologies: node positions, links, loads and the bottleneck cut."""
