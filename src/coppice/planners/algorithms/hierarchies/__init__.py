"""Algorithms in levels: hierarchical, torus and BlueConnect, ACCL, PLink."""
