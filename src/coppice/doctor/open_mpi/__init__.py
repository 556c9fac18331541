"""TODO open_mpi."""
