"""Write and read rules files of Open MPI, in both formats."""
