"""Rules about files by which Open MPI picks algorithms."""
