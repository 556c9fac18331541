"""TODO nccl."""
