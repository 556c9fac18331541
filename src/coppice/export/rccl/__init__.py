"""TODO rccl."""
