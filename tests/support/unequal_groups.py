"""Groups of processes that exchange unequal blocks: what they got right, and what they raise when a rank is killed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from run.engines.mpi.launching import reason_to_skip, run_mpi
from support.paths import TESTS
from support.rank_processes import rank_codes
from support.unequal_ranks import ENGINES

WORKER = Path(__file__).with_name("unequal_ranks.py")
MOST_RANKS = 8


def can_count() -> bool:
    """Whether all engines are here."""
    return (
        find_spec("torch") is not None and find_spec("mpi4py") is not None and not reason_to_skip("open-mpi")
    )


def right_calls(number: int, folder: Path, *, timeout_s: float = 3000) -> dict[str, dict[int, int]]:
    """Calls with the right outcome on all ranks, by engine and size of the group: 16 processes in all.

    Args:
        number: Calls of each engine in each group.
        folder: An empty directory.
    """
    found: dict[str, dict[int, int]] = {}
    for names in (ENGINES, ("mpi",)):
        place = folder / names[0]
        place.mkdir()
        if names == ("mpi",):
            command = [str(WORKER), "mpi", str(place), str(number)]
            done = run_mpi(
                "open-mpi", MOST_RANKS, command, variables={"PYTHONPATH": str(TESTS)}, timeout_s=timeout_s
            )
            assert not done.returncode, done.stdout + done.stderr
        else:
            _run(",".join(names), place, number, MOST_RANKS, timeout_s)
        ranks = [json.loads((place / f"{rank}.json").read_text()) for rank in range(MOST_RANKS)]
        for name in names:
            found[name] = {
                members: min(rank[name].get(str(members), number) for rank in ranks)
                for members in range(2, MOST_RANKS + 1)
            }
    return found


def raised_by_others(name: str, folder: Path) -> list[str]:
    """What ranks 0, 2 and 3 of four raise where rank 1 is killed in an exchange."""
    codes = _run(name, folder, 0, 4, 240)
    assert codes == [0, -9, 0, 0], [(folder / f"{rank}.log").read_text() for rank in range(4)]
    return [str(json.loads((folder / f"{rank}.json").read_text())) for rank in (0, 2, 3)]


def _run(names: str, folder: Path, number: int, ranks: int, timeout_s: float) -> list[int]:
    logs = [folder / f"{rank}.log" for rank in range(ranks)]
    words = [(names, folder, number, rank, ranks) for rank in range(ranks)]
    codes = rank_codes(WORKER, words, logs, timeout_s=timeout_s)
    assert not number or not any(codes), "\n".join(log.read_text() for log in logs)
    return codes
