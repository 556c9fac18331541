"""Products whose stores trigger their scatter, on one rank of a group."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from refusals import refusals

from coppice.errors import CheckError
from coppice.training.torch import TrackedProduct
from coppice.training.torch.tensor import triggered_memory


def rightly_triggered(record: list[Any], blocks: int) -> bool:
    """Every transfer comes with the last update of its tile: not before it, and not later than it."""
    memory = [event for event in record if event[0] != "product"]
    for at, (what, step, tile, block) in enumerate(memory):
        if what == "remote store":
            if ("product", step, tile, block) not in record[: record.index((what, step, tile, block))]:
                return False
        elif what in ("hop", "sum"):
            before = [event for event in memory[:at] if event[1:3] == (step, tile)]
            stores = sum(event[0] == "store" for event in before)
            updates = sum(blocks if event[3] < 0 else 1 for event in before if event[0] == "update")
            last = memory[at - 1]
            if (
                (stores, updates) != (blocks, blocks)
                or last[0] not in ("store", "update")
                or last[1:3] != (step, tile)
            ):
                return False
    return True


def tracked(rank: int, size: int) -> dict[str, Any]:
    """Products whose stores trigger their scatter, beside a product and a sum."""
    found: dict[str, Any] = {}
    for name, rows, dtype, tile_rows, columns in (
        ("even", 4 * size, torch.float64, 2, 4),
        ("uneven", 4 * size - 1, torch.float32, 3, 7),
        ("whole numbers", 3 * size, torch.int64, 1, 1),
        ("one tile", 2 * size, torch.float32, 64, 64),
    ):
        generator = torch.Generator().manual_seed(rank)
        ours = TrackedProduct(rows, 7, dtype=dtype, tile_rows=tile_rows, block_columns=columns)
        own = slice(*ours.grid.chunks[rank : rank + 2])
        errors, same = [], True
        for turn in range(5):
            a = torch.randint(-9, 9, (rows, 5), generator=generator).to(dtype)
            b = torch.randint(-9, 9, (5, 7), generator=generator).to(dtype)
            if dtype.is_floating_point:
                a, b = a / 7, b / 7
            whole = a @ b
            dist.all_reduce(whole)
            if turn == rank % 5:
                time.sleep(0.05)  # ranks are not in step
            part = ours.reduce_scatter(a, b)
            errors.append(float((part - whole[own]).abs().max()))
            same &= torch.equal(part, ours.reduce_scatter(a, b))
            errors.append(float((ours.all_reduce(a, b) - whole).abs().max()))
        hops = [(step.step, step.after) for step in ours.steps if step.kind == "hop"]
        done = {(what, step): at for at, (what, step, _, _) in enumerate(ours.record)}
        found[name] = {
            "error": max(errors),
            "same": same,
            "rightly": rightly_triggered(ours.record, ours.grid.blocks),
            "products": list(dict.fromkeys(step for what, step, _, _ in ours.record if what == "product")),
            "simulated": [step.step for step in ours.steps if step.kind == "product"],
            "hops": [
                done.get(("hop", step), done.get(("remote store", step), -1)) > done["product", step]
                for step, _ in hops
            ],
            "counts": [
                sum(what in whats for what, *_ in ours.record)
                for whats in (("product",), ("hop", "remote store"), ("sum",))
            ],
            "expected": [
                sum(ours.grid.tiles(each) for each in range(size)) * ours.grid.blocks,
                ours.grid.tiles((rank + 1) % size) * ours.grid.blocks
                + sum(ours.grid.tiles(each) for each in range(size) if each not in (rank, (rank + 1) % size)),
                ours.grid.tiles(rank),
            ],
        }
        dist.barrier()
        ours.close()

    # Transfers need nothing more of the product: a block is stored when all those of the steps before have gone.
    a, b = torch.ones(4 * size, 3), torch.ones(3, 4)
    ours = TrackedProduct(4 * size, 4, tile_rows=2, block_columns=2)
    memory, asked = ours._memory, []
    store = memory.store

    def waiting(buffer: int, chunk: int, *rest: Any) -> None:
        step = (chunk - rank - 1) % size
        passed = 0
        for _ in range(3000):
            record = memory._records[buffer]
            passed = sum(what in ("hop", "remote store") for what, *_ in record)
            if passed >= (4 + 2 * (step - 1) if step else 0):
                break
            time.sleep(0.01)
        asked.append([step, passed])
        store(buffer, chunk, *rest)

    memory.store = waiting
    ours.reduce_scatter(a, b)
    found["beside"] = asked
    dist.barrier()
    ours.close()

    # A counter that is off by one.
    found["injured"] = []
    for off in (-1, 1):
        right = triggered_memory.expected_updates
        triggered_memory.expected_updates = lambda blocks, off=off: 2 * blocks + off
        try:
            patience_s = 0.5 if off > 0 else 300  # only what never comes may not be waited for
            ours = TrackedProduct(2 * size, 4, tile_rows=2, block_columns=2, timeout_s=patience_s)
            ours.reduce_scatter(a[: 2 * size], b)
            found["injured"].append(str(rightly_triggered(ours.record, ours.grid.blocks)))
        except CheckError as error:
            found["injured"].append(str(error))
        dist.barrier()
        ours.close()
        triggered_memory.expected_updates = right

    ours = TrackedProduct(size, 4)
    ours.all_reduce(a[:size], b)
    if rank == size - 1:
        ours.close()
        found["left"] = ""
    else:
        try:
            for _ in range(2):
                ours.reduce_scatter(a[:size], b)
        except CheckError as error:
            found["left"] = str(error)
    found["refused"] = refusals(
        lambda: TrackedProduct(size - 1, 4),
        lambda: TrackedProduct(0, 4),
        lambda: ours.reduce_scatter(a, b),
        lambda: ours.reduce_scatter(a[:size].double(), b.double()),
    )
    ours.close()
    return found
