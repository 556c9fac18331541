"""Recipes: expressions of graph families and expansions, with figures derived without building the graph."""
