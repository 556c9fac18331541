"""TODO nccl_tuner."""
