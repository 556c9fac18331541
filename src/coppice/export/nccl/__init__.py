"""Files of NCCL as it is shipped: tuner tables, graphs, corrections of topologies."""
