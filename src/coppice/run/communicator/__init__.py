"""TODO communicator."""
