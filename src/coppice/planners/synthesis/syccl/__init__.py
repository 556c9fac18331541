"""SyCCL (SIGCOMM 2025): sketches over the dimensions of a symmetric network, each small problem solved once."""
