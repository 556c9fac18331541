"""Search for graphs: evaluate base graphs, tabulate their expansions, and choose by workload."""
