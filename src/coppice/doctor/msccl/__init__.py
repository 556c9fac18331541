"""TODO msccl."""
