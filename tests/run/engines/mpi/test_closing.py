"""Ranks of different hosts close their engines at different times; nobody is told anything after it has left."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest

from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_mpi
from coppice.run.lab.namespaces import build, remove
from run.engines.mpi.launching import HOME, environment
from run.engines.mpi.networks import NAME, mesh, reason_to_skip_network

WORKER = str(Path(__file__).with_name("faults_worker.py"))


@pytest.mark.parametrize("library", ["mpich", pytest.param("open-mpi", marks=pytest.mark.slow)])
def test_a_rank_that_closes_late_is_waited_for(library: str) -> None:
    """MPICH's ranks do not wait for each other when they end, and one connects for ever to another that has ended."""
    if (reason := reason_to_skip_network(library)) is not None:
        pytest.skip(reason)
    lab = build(NAME, draw(mesh(4), Fraction(1)))
    try:
        launch_mpi(
            lab,
            library,
            [sys.executable, WORKER, "late"],
            launcher=str(HOME / library / "bin" / "mpiexec"),
            environment=environment(library),
            timeout_s=60,
        )
    finally:
        remove(NAME)
