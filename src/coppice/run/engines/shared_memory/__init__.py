"""TODO shared_memory."""
