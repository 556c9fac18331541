"""Files of stock NCCL: tuner tables, graphs, topology corrections."""
