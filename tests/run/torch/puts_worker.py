"""One rank whose collectives are puts on the emulated device: calls, fallbacks to gloo, rules, graphs, faults."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import api_worker
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worker import FOLDER, MODES, PATIENCE_S, RANK, RANKS, note, tell, until_others_have, world, write_ring

from coppice.collectives import Collective
from coppice.run.engines.put_signal.emulated import EmulatedDevice, EmulatedGraph
from coppice.run.planned import AlgorithmRule, AlgorithmRules, encode_rules

PUTS = MODES["puts"]
assert PUTS is not None
SUM = float(sum(range(1, RANKS + 1)))


class Heard(logging.Handler):
    """What Coppice logs."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """What an action raises, and after how many seconds."""
    begin = time.monotonic()
    try:
        action()
    except Exception as error:  # noqa: BLE001  (it is the outcome)
        cause = type(error.__cause__).__name__ if error.__cause__ is not None else ""
        return {
            "kind": type(error).__name__,
            "cause": cause,
            "words": str(error),
            "s": time.monotonic() - begin,
        }
    return {"kind": "", "cause": "", "words": "", "s": time.monotonic() - begin}


def reduce(count: int = 24) -> torch.Tensor:
    data = torch.full((count,), RANK + 1.0)
    dist.all_reduce(data)
    assert (data == SUM).all()
    return data


def programs(group: Any) -> list[str]:
    """Collectives and bytes of the programs that the engine has put so far."""
    engine = group._paths["cpu"].engine
    return sorted(f"{each.collective.value} {each.count}" for each in engine._calls)


def algorithms(group: Any) -> dict[str, int]:
    """Groups by algorithm, and how many calls each has planned."""
    known = group._paths["cpu"].puts._known
    names = {id(made): name for name, made in group._paths["cpu"].puts._groups.items()}
    return {
        f"{call.count * 4}": (names[id(made)] if made is not None else "gloo") for call, made in known.items()
    }


def left(outcome: dict[str, Any]) -> None:
    """What is not put is gloo's, and the reason is told once."""
    heard = Heard()
    logging.getLogger("coppice").addHandler(heard)
    with world("puts", name="left") as group:
        for _ in range(2):
            reduce()
            data = [torch.empty(2) for _ in range(RANKS)]
            dist.all_gather(data, torch.full((2,), float(RANK)))
            assert torch.cat(data).tolist() == [float(rank) for rank in range(RANKS) for _ in range(2)]
            for count in (0, 5):
                dist.all_reduce(torch.ones(count, dtype=torch.complex64))  # as twice as many floats
                empty = torch.ones(count)
                dist.all_reduce(empty)
        outcome["programs"] = programs(group)
        path: Any = group._paths["cpu"]
        outcome["device"] = path.engine.device.name
        path.engine.device.refusal = lambda _, dtype: "expected a kinder device" if dtype == "int32" else ""
        for _ in range(2):
            whole = torch.full((8,), RANK + 1, dtype=torch.int32)
            dist.all_reduce(whole)
            assert (whole == int(SUM)).all()
    logging.getLogger("coppice").removeHandler(heard)
    outcome["told"] = heard.words


def tuned(outcome: dict[str, Any]) -> None:
    """Rules decide by size; between measured sizes and beyond them too."""

    def rule(first: int, last: int, algorithm: str, **changes: Any) -> AlgorithmRule:
        given = {"collective": Collective.ALL_REDUCE, "nodes": 1, "ranks": RANKS, **changes}
        return AlgorithmRule(first_bytes=first, last_bytes=last, algorithm=algorithm, **given)

    rules = AlgorithmRules(
        rules=(
            rule(64, 399, "ring"),
            rule(400, 4000, "forest"),
            rule(5000, 6000, "forest", ranks=RANKS + 1),
            rule(7000, 8000, "no-such-algorithm"),
        )
    )
    path = FOLDER / f"rules-{RANK}.json"  # a file of its own on every host
    path.write_text(encode_rules(rules))
    chosen = replace(PUTS, tuning=str(path), threshold_bytes=None)
    with world("puts", name="tuned", options=chosen) as group:
        for num_bytes in (32, 64, 200, 396, 400, 2000, 4000, 4004, 5600, 7600):
            reduce(num_bytes // 4)
        gathered = torch.empty(100 * RANKS)
        dist.all_gather_into_tensor(gathered, torch.ones(100))
        outcome["tuned"] = algorithms(group)
        outcome["tuned programs"] = programs(group)
    if RANK == 1:
        path.write_text(encode_rules(AlgorithmRules(rules=rules.rules[:1])))
    with world("puts", name="rules", options=chosen):
        outcome["rules"] = attempt(reduce)
    if RANK == 1:
        path.write_text("{}}")
    with world("puts", name="no rules", options=chosen):
        outcome["no rules"] = attempt(reduce)


def graphs(outcome: dict[str, Any]) -> None:
    """A step of several calls, recorded and replayed on new data in the same memory."""
    with world("puts", name="graphs") as group:
        weights, gathered = torch.zeros(12), torch.zeros(12 * RANKS)

        def step() -> None:
            dist.all_reduce(weights)
            work = dist.all_gather_into_tensor(gathered, weights, async_op=True)
            work.wait()

        step()
        path: Any = group._paths["cpu"]
        assert isinstance(path.engine.device, EmulatedDevice)
        with EmulatedGraph(path.engine.device) as graph:
            step()
            outcome["new call"] = attempt(lambda: dist.all_reduce(torch.ones(7)))
        wrong = 0
        for turn in range(30):
            weights.copy_(torch.arange(12.0) * (RANK + 1) + turn)
            graph.replay(timeout_s=60)
            wanted = torch.arange(12.0) * SUM + turn * RANKS
            wrong += int((weights != wanted).sum()) + int((gathered != wanted.repeat(RANKS)).sum())
        outcome["wrong after replays"] = wrong
        reduce()


def faults(outcome: dict[str, Any]) -> None:
    """A rank that hangs, one that aborts, and one that is killed while others are in a backward pass."""
    with world("puts", name="hang", timeout_s=PATIENCE_S) as group:
        reduce()
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
        if RANK == 1:
            until_others_have("hang")
        outcome["hang"] = attempt(reduce)
        outcome["after hang"] = attempt(reduce)
        note("hang")
        until_others_have("hang")  # nobody leaves before: a rank that is gone is another fault
    with world("puts", name="abort", timeout_s=PATIENCE_S) as group:
        reduce()
        if RANK == 1:
            group.abort()
        outcome["abort"] = attempt(reduce)
    with world("puts", name="killed", timeout_s=PATIENCE_S):
        network = DistributedDataParallel(nn.Linear(8, 8))
        network(torch.ones(8)).sum().backward()
        if RANK == 1:
            tell(outcome)
            os._exit(3)
        outcome["killed"] = attempt(lambda: network(torch.ones(8)).sum().backward())
        outcome["after kill"] = attempt(lambda: dist.all_reduce(torch.ones(5), async_op=True).wait())


if __name__ == "__main__":
    write_ring()
    outcome: dict[str, Any] = {"calls": api_worker.calls("puts")["puts"]}
    left(outcome)
    tuned(outcome)
    graphs(outcome)
    faults(outcome)
    tell(outcome)
