"""One rank of an all-reduce by a switch: ``switched_sum.py ELEMENTS``; says whether the sum is right."""

from __future__ import annotations

import os
import sys

import numpy as np

from coppice.innetwork.serving.udp import SwitchClient


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["COPPICE_SWITCH"]
    seat, seats = (int(word) for word in os.environ.get("SEAT", f"{rank % 2} 2").split())
    count = int(sys.argv[1])
    given = np.arange(count, dtype=np.int32) * (rank + 1)
    with SwitchClient(
        address, worker=rank, workers=ranks, member=(seat, seats), element="int32", join_timeout_s=60
    ) as client:
        found = client.all_reduce(given.copy())
    wanted = np.arange(count, dtype=np.int32) * (ranks * (ranks + 1) // 2)
    sys.stdout.write("right\n" if np.array_equal(found, wanted) else "wrong\n")


if __name__ == "__main__":
    main()
