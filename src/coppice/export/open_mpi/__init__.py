"""Rules files of Open MPI, in both of their forms: written and read."""
