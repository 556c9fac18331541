"""TE-CCL (SIGCOMM'24): collectives as multi-commodity flow in epochs."""
