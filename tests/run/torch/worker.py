"""What all scripts of ranks share: coming together, in several settings in turn, and telling the outcome."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import coppice.torch

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
PATIENCE_S = 600.0  # where nothing should have to be waited for so long
MODES = {
    "gloo": None,
    "shm": coppice.torch.Options(engine="shm"),
    "puts": coppice.torch.Options(engine="put-signal", topology=str(FOLDER / "ring.json"), threshold_bytes=0),
    "messages": coppice.torch.Options(engine="torch", topology=str(FOLDER / "ring.json"), threshold_bytes=0),
}


@contextlib.contextmanager
def world(mode: str, *, name: str = "", timeout_s: float = 60, options: Any = None) -> Iterator[Any]:
    """The world's group in one setting."""
    file = FOLDER / f"store-{mode}-{name}"
    chosen = MODES[mode] if options is None else options
    dist.init_process_group(
        "gloo" if mode == "gloo" else "coppice",
        init_method=f"file://{file}",
        rank=RANK,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
        pg_options=chosen,
    )
    # Ranks come together late after faults; what they then do together has a timeout of its own.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), dist.group.WORLD)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def note(name: str) -> None:
    """Say that this rank is done with something, for :func:`until_others_have`."""
    (FOLDER / f"{name}-{RANK}").touch()


def until_others_have(name: str) -> None:
    """Wait until all other ranks are done with something: a rank that hangs does nothing before."""
    files = [FOLDER / f"{name}-{rank}" for rank in range(RANKS) if rank != RANK]
    end = time.monotonic() + PATIENCE_S
    while not all(file.exists() for file in files) and time.monotonic() < end:
        time.sleep(0.01)


def write_ring() -> None:
    """The ring that plans are made for."""
    from coppice.topology.presets import preset
    from coppice.topology.readers.document import write_topology

    if RANK == 0:
        write_topology(preset("ring", gpus=RANKS), FOLDER / "ring.json")


def tell(outcome: dict[str, Any]) -> None:
    """Leave the outcome of this rank."""
    (FOLDER / f"{RANK}.json").write_text(json.dumps(outcome))
