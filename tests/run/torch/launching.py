"""Running a script as several ranks, and reading what each of them has to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.rank_processes import rank_codes

HERE = Path(__file__).parent


def run_ranks(
    script: str,
    ranks: int,
    folder: Path,
    *arguments: str,
    timeout_s: float = 300,
    killed: tuple[int, ...] = (),
    variables: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run ``script RANK RANKS FOLDER ARGUMENTS`` for every rank; what each wrote to ``FOLDER/RANK.json``.

    Args:
        script: A script beside this file.
        ranks: Number of ranks.
        folder: An empty directory.
        arguments: Further arguments.
        timeout_s: All must have ended by then, in seconds.
        killed: Ranks that end by a signal or an exit status of their own; all others must end with status 0.
        variables: Further variables.
    """
    logs = [folder / f"{rank}.log" for rank in range(ranks)]
    codes = rank_codes(
        HERE / script,
        [(rank, ranks, folder, *arguments) for rank in range(ranks)],
        logs,
        variables={"COPPICE_CACHE": str(folder / "cache"), **(variables or {})},
        timeout_s=timeout_s,
    )
    survivors = [rank for rank in range(ranks) if rank not in killed]
    failed = [rank for rank in survivors if codes[rank]]
    assert not failed, "\n".join(f"rank {rank}: {codes[rank]}\n{logs[rank].read_text()}" for rank in failed)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in survivors]
