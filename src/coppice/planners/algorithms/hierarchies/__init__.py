"""Hierarchical algorithms: HAN, torus, BlueConnect, ACCL, PLink."""
