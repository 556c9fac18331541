"""Execution plans with one fault put in at random."""

from __future__ import annotations

import copy
import random
from typing import Any


def _lines(plan: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """All lists of operations."""
    lines = [block["ops"] for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    return lines + [op["ops"] for line in lines for op in line if "ops" in op]


def mutant(plan: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """What was done, and the plan after it; nothing may have been done."""
    made = copy.deepcopy(plan)
    line = rng.choice([line for line in _lines(made) if line])
    place = rng.randrange(len(line))
    op = line[place]
    entries = [*op.get("src_buff", ()), *op.get("dst_buff", ())]
    kind = rng.choice(
        ["drop", "drop", "swap", "double", "index", "index", "source", "channel", "relax", "buffer", "share"]
    )
    match kind:
        case "drop":
            del line[place]
        case "swap" if place + 1 < len(line):
            line[place], line[place + 1] = line[place + 1], line[place]
        case "double":
            line.insert(place, copy.deepcopy(op))
        case "index" if entries:
            entry = rng.choice(entries)
            entry["index"] = max(0, entry["index"] + rng.choice([-1, 1]))
        case "source" if len(op.get("src_buff", ())) > 1:
            op["src_buff"].pop()
        case "channel" if op.get("channel_ids"):
            op["channel_ids"][rng.randrange(len(op["channel_ids"]))] = rng.randrange(3)
        case "relax" if op["name"] in ("put", "pws", "pwsf"):
            op["name"] = rng.choice(["put", "pws", "pwsf"])
        case "buffer" if entries:
            entry = rng.choice(entries)
            if "type" in entry:
                entry["type"] = rng.choice("ios")
        case "share" if "tbg_info" in op:
            op["tbg_info"]["tb_id"] = 0
        case "share" if "semaphore_ids" in op:
            op["semaphore_ids"] = [rng.randrange(3)]
        case _:
            kind = "none"
    return kind, made
