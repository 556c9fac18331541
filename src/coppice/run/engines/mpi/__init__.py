"""The engine over MPI, its native collectives, and its tool interface."""
