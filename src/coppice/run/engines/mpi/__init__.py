"""The engine over MPI, and MPI's own collectives beside it."""
