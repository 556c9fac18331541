"""What leaves every rank towards every other one while MPICH runs an algorithm is what our schedule sends, within 2%.

All pairs of ranks are linked in a network of this machine, so that each link carries what one rank sends to one other:
data, their headers and acknowledgements. Needs root.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_mpi
from coppice.run.lab.namespaces import build, remove
from coppice.selection import tables_of
from run.engines.mpi.launching import HOME, environment
from run.engines.mpi.networks import NAME, mesh, reason_to_skip_network
from support.benchmark_scripts import BENCHMARKS, load_benchmark

traffic, table = load_benchmark("mpi_traffic"), load_benchmark("mpich_traffic")
MPICH, schedule_of_mpich = table.MPICH, table.schedule_of_mpich

WITHIN = 0.02

reason = reason_to_skip_network("mpich")
needs_lab = pytest.mark.skipif(reason is not None, reason=str(reason))


@needs_lab
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_every_algorithm_sends_what_our_schedule_sends(ranks: int, tmp_path: Path) -> None:
    elements = (1 << 20) // ranks * ranks
    calls = [
        (function, algorithm, elements, root)
        for function, (collective, algorithms) in MPICH.items()
        for algorithm, forced in algorithms.items()
        if not forced.powers_only or not ranks & (ranks - 1)
        for root in ((0, 1) if collective.rooted else (0,))
    ]
    given, found = tmp_path / "calls.json", tmp_path / "found.json"
    given.write_text(json.dumps(calls))
    worker = str(Path(__file__).with_name("mpich_traffic_worker.py"))
    lab = build(NAME, draw(mesh(ranks), Fraction(1)))
    try:
        launch_mpi(
            lab,
            "mpich",
            [sys.executable, worker, str(given), str(found)],
            launcher=str(HOME / "mpich" / "bin" / "mpiexec"),
            environment={
                **environment("mpich"),
                "MPIR_CVAR_DEVICE_COLLECTIVES": "none",
                "PYTHONPATH": str(BENCHMARKS),
            },
            timeout_s=240,
        )
    finally:
        remove(NAME)
    wrong = []
    for (function, algorithm, _, root), row in zip(calls, json.loads(found.read_text()), strict=True):
        theirs = np.array(row)
        ours = traffic.traffic_of(
            schedule_of_mpich(function, algorithm, ranks, root), elements, traffic.ELEMENT_BYTES
        ).size_bytes
        follows = MPICH[function][1][algorithm].follows(ranks)
        most = WITHIN * ours.max()
        # Where no message goes, TCP's answers do, about a hundredth of what they answer to, and connections are made.
        carries = theirs > most
        total, rest = theirs[carries].sum() / ours.sum(), theirs[~carries].sum() / ours.sum()
        if (np.abs(theirs - ours) > most).any() if follows else max(abs(total - 1), rest) > WITHIN:
            wrong.append((function, algorithm, root, ours.tolist(), theirs.tolist()))
    assert not wrong, "\n".join(map(str, wrong))


def test_names_are_those_of_the_decision_tables() -> None:
    """What the library may pick by itself is here under the same name, as the same algorithm."""
    tables = tables_of("mpich")
    for function, (collective, algorithms) in MPICH.items():
        entry = tables.functions[function]
        assert entry.performs is collective
        for name, picked in entry.algorithms.items():
            if name in algorithms:
                assert algorithms[name].name == picked.ours, (function, name)


def test_what_mpich_has_not_is_named() -> None:
    with pytest.raises(InputError, match="'sparbit' of 'allgather': choose one of brucks, k_brucks"):
        schedule_of_mpich("allgather", "sparbit", 4)
    with pytest.raises(InputError, match="power of two of ranks, found 6"):
        schedule_of_mpich("allgather", "recursive_doubling", 6)
    assert table.algorithm_variable("bcast") == "MPIR_CVAR_BCAST_INTRA_ALGORITHM"
