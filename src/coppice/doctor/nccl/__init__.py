"""Rules about files of NCCL and RCCL: tuner tables, graphs, topologies."""
