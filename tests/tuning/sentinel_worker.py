"""Sums 8 bytes on all ranks, and prints whether that failed for an argument: a rule named an algorithm that is none."""

from __future__ import annotations

import os

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
found = "own choice"
try:
    world.Allreduce(np.ones(8, np.uint8), np.zeros(8, np.uint8))
except MPI.Exception as error:
    found = "the rule" if error.Get_error_class() == MPI.ERR_ARG else "another error"
if world.rank == 0:
    print(found, flush=True)
os._exit(0)
