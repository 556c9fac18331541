"""One rank of groups in which rank 1 does something else than the others: what everybody raises, and when."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worker import FOLDER, MODES, PATIENCE_S, RANK, RANKS, note, tell, until_others_have, world, write_ring

import coppice.version

MODE = sys.argv[4]
OPTIONS = MODES[MODE]
TIMEOUT_S = 2.0  # where it has to pass


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """What an action raises, and after how many seconds."""
    begin = time.monotonic()
    try:
        action()
    except Exception as error:  # noqa: BLE001  (it is the outcome)
        names = [kind.__name__ for kind in type(error).__mro__]
        cause = type(error.__cause__).__name__ if error.__cause__ is not None else ""
        return {"kinds": names, "cause": cause, "words": str(error), "seconds": time.monotonic() - begin}
    return {"kinds": [], "words": "", "seconds": time.monotonic() - begin}


def reduce(count: int = 1000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    data = torch.ones(count, dtype=dtype)
    dist.all_reduce(data)
    return data


def differing(outcome: dict[str, Any]) -> None:
    """Ranks that do not fit together."""
    with world(MODE, name="sizes", timeout_s=PATIENCE_S, options=OPTIONS) as group:
        reduce()
        hurry(group)
        outcome["sizes"] = attempt(lambda: reduce(1000 + RANK % 2))
        outcome["later"] = attempt(reduce)
    with world(MODE, name="types", timeout_s=PATIENCE_S, options=OPTIONS):
        outcome["types"] = attempt(lambda: reduce(dtype=torch.float64 if RANK == 1 else torch.float32))
    with world(MODE, name="calls", timeout_s=PATIENCE_S, options=OPTIONS):
        other = torch.empty(10 * RANKS)
        outcome["calls"] = attempt(
            (lambda: dist.all_gather_into_tensor(other, torch.ones(10))) if RANK == 1 else reduce
        )
    threshold = replace(OPTIONS, threshold_bytes=5 if RANK == 1 else 0)
    with world(MODE, name="options", timeout_s=PATIENCE_S, options=threshold):
        outcome["options"] = attempt(reduce)
    from coppice.topology.presets import preset
    from coppice.topology.readers.document import write_topology

    if RANK == 1:
        write_topology(preset("star", gpus=2), FOLDER / "two.json")
        write_topology(preset("star", gpus=RANKS), FOLDER / "star.json")
    for name, file in (("topologies", "star.json"), ("ranks", "two.json"), ("files", "nowhere.json")):
        chosen = replace(OPTIONS, topology=str(FOLDER / (file if RANK == 1 else "ring.json")))
        with world(MODE, name=name, timeout_s=PATIENCE_S, options=chosen):
            outcome[name] = attempt(reduce)
    own = coppice.version.__version__
    if RANK == 1:
        coppice.version.__version__ = "0.0.1"
    with world(MODE, name="versions", timeout_s=PATIENCE_S, options=OPTIONS):
        outcome["versions"] = attempt(reduce)
    coppice.version.__version__ = own


def hurry(group: Any) -> None:
    """From now on the timeout is a short one, also where ranks come to their first call late."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S), group)


def hanging(name: str, options: Any) -> dict[str, Any]:
    """What every rank gets while rank 1 hangs, and rank 1 thereafter."""
    with world(MODE, name=name, timeout_s=PATIENCE_S, options=options) as group:
        reduce()
        hurry(group)
        if RANK == 1:
            until_others_have(name)
        found = attempt(reduce)
        found["later"] = attempt(reduce)["kinds"]
        note(name)
        until_others_have(name)  # nobody leaves before: a rank that is gone is another fault
    return found


def late(outcome: dict[str, Any]) -> None:
    """A rank that is slow, and one that hangs."""
    with world(MODE, name="slow", timeout_s=PATIENCE_S, options=OPTIONS):
        reduce()
        time.sleep(1.0 if RANK == 1 else 0)
        outcome["slow"] = attempt(lambda: reduce().tolist() == [float(RANKS)] * 1000 or 1 / 0)
    outcome["hang"] = hanging("hang", OPTIONS)
    outcome["hang of a small one"] = hanging("small", replace(OPTIONS, threshold_bytes=1 << 20))
    with world(MODE, name="abort", timeout_s=PATIENCE_S, options=OPTIONS) as group:
        reduce()
        if RANK == 1:
            group.abort()
            outcome["abort"] = attempt(reduce)
        else:
            outcome["abort"] = attempt(reduce)


def killed(outcome: dict[str, Any]) -> None:
    """A rank dies in the backward pass of others; C++ waits for the gradients there."""
    with world(MODE, name="killed", timeout_s=PATIENCE_S, options=OPTIONS):
        network = DistributedDataParallel(nn.Linear(8, 8))
        network(torch.ones(8)).sum().backward()
        if RANK == 1:
            tell(outcome)
            os._exit(3)
        outcome["killed"] = attempt(lambda: network(torch.ones(8)).sum().backward())
        data = torch.ones(5)
        work = attempt(lambda: dist.all_reduce(data, async_op=True).wait())
        outcome["after"] = work


def main() -> None:
    write_ring()
    outcome: dict[str, Any] = {}
    differing(outcome)
    late(outcome)
    killed(outcome)
    tell(outcome)


if __name__ == "__main__":
    main()
