"""TE-CCL: collectives as multi-commodity flow in epochs (SIGCOMM'24)."""
