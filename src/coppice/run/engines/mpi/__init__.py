"""Engine over MPI, and MPI's own collectives."""
