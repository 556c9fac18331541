"""One rank of plans carried out: ``chunked_ranks.py MODE RANK SIZE FOLDER BACKEND``; it writes what it found."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from chunked_models import distance, loss_of, transformer, words
from overlap_ranks import main
from torch.nn.parallel import DistributedDataParallel

from coppice.errors import CheckError, InputError
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationChoice,
    OperationGraph,
    WholePlan,
    WholePolicy,
)
from coppice.topology.presets import preset
from coppice.training.torch.scheduling import schedule
from coppice.training.torch.whole.execution import collective_graph, execute_plan, network_channels
from coppice.training.torch.whole.grids import PhaseGroups
from coppice.training.torch.whole.orders import OrderedPlan, agreed_plan, require_agreed
from coppice.training.torch.whole.sharded import ShardedWeights
from coppice.training.torch.whole.templates import COLLECTIVES, CollectiveBuffers

TWO_CHANNELS = {"inside": (1e9, 1e-5), "between": (1e8, 1e-4), "between 1": (1e8, 1e-4)}


def filled(shape: int, rank: int, *, exact: bool) -> torch.Tensor:
    """Numbers of a rank: small integers, whose sums are exact in any order, or any."""
    generator = torch.Generator().manual_seed(7 + rank)
    if exact:
        return torch.randint(-50, 50, (shape,), generator=generator).float()
    return torch.randn(shape, generator=generator)


def collective(kind: str, length: int, ranks: list[int], *, exact: bool = True) -> CollectiveBuffers:
    """A collective of this rank; ``length`` is that of a part where ranks have parts."""
    at, size = ranks.index(dist.get_rank()), len(ranks)
    group = None if size == dist.get_world_size() else GROUPS[tuple(ranks)]
    if kind in ("all_reduce", "broadcast", "send"):
        return CollectiveBuffers(kind, filled(length, at, exact=exact), group=group, root=size - 1, peer=0)
    sizes = {"all_gather": (length, length * size), "reduce_scatter": (length * size, length)}
    given, taken = sizes.get(kind, (length * size, length * size))
    return CollectiveBuffers(kind, filled(given, at, exact=exact), torch.full((taken,), -1.0), group=group)


GROUPS: dict[tuple[int, ...], dist.ProcessGroup] = {}


def plain(buffers: CollectiveBuffers, ranks: list[int]) -> torch.Tensor:
    """What torch's own collective gives."""
    tensor = buffers.tensor.clone()
    output = torch.empty_like(tensor if buffers.output is None else buffers.output)
    if buffers.collective == "all_reduce":
        dist.all_reduce(tensor, group=buffers.group)
    elif buffers.collective == "broadcast":
        dist.broadcast(tensor, src=ranks[buffers.root], group=buffers.group)
    elif buffers.collective == "send":
        every = [torch.empty_like(tensor) for _ in ranks]
        dist.all_gather(every, tensor, group=buffers.group)
        return every[buffers.root] if dist.get_rank() == ranks[buffers.peer] else tensor
    elif buffers.collective == "all_gather":
        dist.all_gather_into_tensor(output, tensor, group=buffers.group)
        return output
    elif buffers.collective == "reduce_scatter":
        dist.reduce_scatter_tensor(output, tensor, group=buffers.group)
        return output
    else:
        dist.all_to_all_single(output, tensor, group=buffers.group)
        return output
    return tensor


def result(buffers: CollectiveBuffers) -> torch.Tensor:
    """Where the result is."""
    return buffers.tensor if buffers.output is None else buffers.output


def cases(
    ranks: list[int], groups: PhaseGroups, *, every: bool
) -> Iterator[tuple[str, WholePlan, CollectiveBuffers]]:
    """Every collective and decomposition, in some numbers of pieces and lengths."""
    cuts = itertools.product((1, 2, 3, 8), (24, 13, 2)) if every else [(1, 24), (3, 13)]
    for kind, (pieces, length) in itertools.product(COLLECTIVES, cuts):
        graph = collective_graph({"own": collective(kind, length, ranks)}, groups, network=TWO_CHANNELS)
        for decomposition, label in enumerate(graph.operations[0].labels):
            phases = graph.operations[0].decompositions[decomposition]
            channels = tuple((number + pieces) % len(phase.channels) for number, phase in enumerate(phases))
            choice = OperationChoice(pieces=pieces, decomposition=decomposition, channels=channels)
            name = f"{kind}, {label}, {pieces} of {length}"
            yield name, WholePlan(choices={"own": choice}), collective(kind, length, ranks)


def templates(rank: int, size: int, folder: Path, *, every: bool = True) -> dict[str, Any]:
    """Every template and number of pieces beside torch's collective, on all ranks and on two of them."""
    del folder
    found: dict[str, Any] = {"wrong": [], "cases": 0, "labels": [], "near": 0.0}
    if size == 4:
        for ranks in ([0, 1], [2, 3], [0, 2], [1, 3]):
            made = dist.new_group(ranks)
            if rank in ranks:
                GROUPS[tuple(ranks)] = made
    boxes = PhaseGroups(ranks_of_box=2)
    labels = set()
    rows = [list(range(size)), *map(list, GROUPS)]
    for ranks in rows:
        for name, plan, buffers in cases(ranks, boxes, every=every):
            wanted = plain(buffers, ranks)
            work = {"own": buffers}
            ordered = OrderedPlan.of(collective_graph(work, boxes, network=TWO_CHANNELS), plan)
            execute_plan(ordered, work, boxes)
            if not torch.equal(result(buffers), wanted):
                found["wrong"].append(f"{name}, ranks {ranks}")
            found["cases"] += 1
            labels.add(name.split(", ")[1])
        again = collective("all_reduce", 1000, ranks, exact=False)
        wanted = plain(again, ranks)
        work = {"own": again}
        graph = collective_graph(work, boxes, network=TWO_CHANNELS)
        decomposition = len(graph.operations[0].decompositions) - 1
        execute_plan(
            OrderedPlan.of(graph, WholePlan(choices={"own": OperationChoice(4, decomposition)})), work, boxes
        )
        apart = float((again.tensor - wanted).abs().max())
        found["exact" if len(ranks) == 2 else "near"] = apart
    found["labels"] = sorted(labels)
    return found


ROWS = 6
STEPS = 20
NETWORK = {"inside": (1e7, 1e-5), "between": (2e6, 2e-5)}
"""Slow enough for cuts to pay."""
SETTINGS: dict[str, dict[str, Any]] = {
    "centauri": {"budget": 60, "most_pieces": 4},
    "syndicate": {"budget": 60, "most_pieces": 4, "seed": 1},
}


FORCED = ("forced", "forced, sharded")


def shared_by_two(rank: int, size: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Neighbours share a model; ranks at the same place of pairs have the same share."""
    made = {}
    for row in ([0, 1], [2, 3], [0, 2], [1, 3]) if size == 4 else ([0, 1], [0], [1]):
        group = dist.new_group(row)
        if rank in row:
            made[tuple(row)] = group
    rows = sorted(made, key=lambda row: (len(row) < 2, row[1] - row[0] if len(row) > 1 else 0))
    return made[rows[0]], made[rows[1]]


class Forced(WholePolicy):
    """A plan that uses everything: pieces, the last decomposition of each collective, and an order of its own."""

    name = "forced"
    about = assumes = "tests"
    beside = True

    def plan(self, graph: OperationGraph) -> WholePlan:
        """Everything in three pieces; what is decided last goes first."""
        decisions = graph.decisions()
        return WholePlan(
            choices={
                name: OperationChoice(3, len(each.decompositions) - 1) for name, each in decisions.items()
            },
            ranks={name: -number for number, name in enumerate(decisions)},
        )


def training(
    rank: int, size: int, folder: Path, policies: Sequence[str] = ("syndicate", "centauri", *FORCED)
) -> dict[str, Any]:
    """Plans carried out in a model that ranks share, beside one process."""
    tensor, data = shared_by_two(rank, size)
    place, replica = rank % 2, rank // 2
    replicas = size // 2
    found: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for name in policies:
        policy, settings = POLICIES[name]
        whole = transformer()
        model = transformer(rank % 1, 2, place, tensor)
        keys = list(model.state_dict())
        plain = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = schedule(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            policy,
            data=data,
            ranks_of_box=2,
            network=NETWORK,
            recorded=3,
            timeout_s=60,
            **settings,
        )
        at_work = optimizer.schedule
        sharded = [each.sharded for each in at_work.entries if each.sharded is not None]
        most = _watched(sharded)
        mine = slice(replica * ROWS, (replica + 1) * ROWS)
        orders, norms = [], []
        for step in range(STEPS):
            batch = words(step, replicas * ROWS)
            for each in (optimizer, plain):
                each.zero_grad()
            if step % 7 == 6:
                other = words(1000 + step, replicas * ROWS)
                with optimizer.no_sync():
                    loss_of(model, other, mine).backward()
                loss_of(whole, other, slice(None)).backward()
            loss_of(model, batch, mine).backward()
            loss_of(whole, batch, slice(None)).backward()
            if step == 9:
                norms = [float(optimizer.clip_grad_norm_(1e9))]
                norms.append(float(torch.nn.utils.clip_grad_norm_(whole.parameters(), 1e9)))
            for each in (optimizer, plain):
                each.step()
            ordered = at_work.ordered
            orders.append(at_work.launched == {each: ordered.names(each) for each in at_work.launched})
            if step == 12:
                torch.save([model.state_dict(), optimizer.state_dict()], folder / f"{name}-{rank}.pt")
        with torch.no_grad():
            batch = words(99, ROWS)
            apart = float((loss_of(model, batch, slice(None)) - loss_of(whole, batch, slice(None))).abs())
        weights[name] = model.state_dict()
        found[name] = {
            "distance": distance(model, whole, 2, place),
            "evaluated": apart,
            "norms": abs(norms[0] - norms[1]),
            "orders": all(orders),
            "launched": at_work.launched,
            "choices": {each: list(choice) for each, choice in ordered.plan.choices.items()},
            "predicted": at_work.predicted_seconds,
            "plain": ordered.graph.seconds(),
            "digest": ordered.digest(),
            "keys": list(weights[name]) == keys,
            "most": max(most, default=0),
            "kept": sum(p.numel() for p in model.parameters()),
            "freed": not any(each.held or each.flat.untyped_storage().size() for each in sharded),
        }
        if name == "forced, sharded":
            own, others = weights[name], weights["forced"]
            found[name]["as whole"] = all(torch.equal(own[key], others[key]) for key in own)
        again = transformer(5, 2, place, tensor)
        saved = torch.load(folder / f"{name}-{rank}.pt")
        optimizer.close()
        found[name]["closed"] = all(
            torch.equal(weights[name][key], value) for key, value in model.named_parameters()
        )
        again, resumed = schedule(
            again,
            torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9),
            policy,
            data=data,
            ranks_of_box=2,
            timeout_s=60,
            **settings,
        )
        again.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        for step in range(13, STEPS):
            resumed.zero_grad()
            if step % 7 == 6:
                with resumed.no_sync():
                    loss_of(again, words(1000 + step, replicas * ROWS), mine).backward()
            loss_of(again, words(step, replicas * ROWS), mine).backward()
            resumed.step()
        found[name]["resumed"] = distance(again, model, 1, 0)
        found[name]["same plan"] = resumed.schedule.ordered.digest() == ordered.digest()
        resumed.close()
    return found


def _watched(sharded: Sequence[ShardedWeights]) -> list[int]:
    """Gets how many sections have whole weights, when one gets them."""
    found: list[int] = []

    def watch(each: ShardedWeights) -> None:
        hold = each._hold

        def held() -> None:
            hold()
            found.append(sum(other.held for other in sharded))

        each._hold = held  # type: ignore[method-assign]

    for each in sharded:
        watch(each)
    return found


def carried(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """A plan with computation, its order, orders that are not legal, and ranks that do not agree."""
    del folder
    groups = PhaseGroups(ranks_of_box=size // 2)
    x, tokens, far = torch.zeros(24), torch.full((8 * size,), float(rank)), torch.zeros(8 * size)
    work: dict[str, Any] = {
        "sums": CollectiveBuffers("all_reduce", x),
        "tokens": CollectiveBuffers("all_to_all", tokens, far),
    }
    exchanges = collective_graph(work, groups, network=TWO_CHANNELS).operations
    events: list[str] = []

    def compute(piece: int, pieces: int) -> None:
        events.append(f"computed {piece}")
        x[24 * piece // pieces : 24 * (piece + 1) // pieces] = float(rank + piece)

    operations = (
        GraphOperation(
            name="layer",
            decompositions=((CollectivePhase(kind="compute", amount=1e-3, channels=("device",)),),),
            decision="sums",
            group="sums",
        ),
        replace(exchanges[0], after=(0,), decision="sums", group="sums"),
        exchanges[1],
    )
    channels = {"device": Channel(), **network_channels(TWO_CHANNELS)}
    graph = OperationGraph(operations=operations, channels=channels)
    found: dict[str, Any] = {"said": []}
    for policy, settings in (("syndicate", {"budget": 200}), ("centauri", {"most_pieces": 4})):
        plan = agreed_plan(graph, policy, **settings)
        launched = execute_plan(plan, {**work, "layer": compute}, groups)
        found[policy] = {
            "launched": launched,
            "planned": {channel: plan.names(channel) for channel in channels},
            "digest": plan.digest(),
            "better": plan.predicted_seconds < graph.seconds(),
            "tokens": far.tolist() == [float(each) for each in range(size) for _ in range(8)],
        }
    # By hand: the sum of a piece is under way while the next one is computed.
    plan = OrderedPlan.of(graph, WholePlan(choices={"sums": OperationChoice(4, 2 if size > 2 else 1)}))
    execute_plan(plan, {**work, "layer": compute}, groups)
    pieces = [sum(other + piece for other in range(size)) for piece in range(4)]
    found["sums"] = x.tolist() == [float(each) for each in pieces for _ in range(6)]
    first = [each.split()[0] for each in plan.names()]
    found["pipelined"] = first.index("sums") < len(first) - 1 - first[::-1].index("layer")
    draw = random.Random(3)
    refused = legal = 0
    for _ in range(200):
        order = list(plan.sequence)
        a, b = draw.sample(range(len(order)), 2)
        order[a], order[b] = order[b], order[a]
        place = {task: at for at, task in enumerate(order)}
        lawful = all(place[other] < place[task] for task in place for other in plan.tasks[task].after)
        try:
            OrderedPlan.of(graph, plan.plan, sequence=order)
            legal += lawful
        except InputError as error:
            refused += not lawful and "the order is not legal" in str(error)
    found["mutations"] = [refused, legal, refused + legal]
    unlike = {"sums": collective("all_reduce", 8 + rank, list(range(size)))}
    attempts: list[Any] = [
        lambda: OrderedPlan.of(graph, plan.plan, sequence=plan.sequence[1:]),
        lambda: execute_plan(plan, work, groups),
        lambda: agreed_plan(collective_graph(unlike, groups), "syndicate"),
        lambda: require_agreed(OrderedPlan.of(graph, WholePlan(choices={"sums": OperationChoice(1 + rank)}))),
        lambda: agreed_plan(graph, "lina"),
        lambda: collective_graph(work, groups, network={"wire": (1.0, 1.0)}),
    ]
    for attempt in attempts:
        try:
            attempt()
        except (InputError, CheckError) as error:
            found["said"].append(f"{type(error).__name__}: {error}")
    return found


def refused(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """What a schedule of a whole step does not take."""
    del folder
    tensor, data = shared_by_two(rank, size)
    said = []

    def attempt(run: Any) -> None:
        try:
            run()
        except (InputError, CheckError) as error:
            said.append(str(error))

    settings: dict[str, Any] = {"ranks_of_box": 2, "network": NETWORK, "timeout_s": 30}

    def planned(model: torch.nn.Module, policy: str = "centauri", **given: Any) -> Any:
        kind = given.pop("optimizer", torch.optim.SGD)
        return schedule(model, kind(model.parameters(), lr=0.1), policy, **given)[1]

    attempt(lambda: planned(torch.nn.Linear(2, 2)))
    attempt(lambda: planned(transformer(0, 2, rank % 2, tensor)))
    attempt(lambda: planned(transformer(), recorded=1))
    attempt(lambda: planned(transformer(), tune=True))
    attempt(lambda: planned(transformer(), network=(1e9, 1e-5)))
    attempt(lambda: planned(transformer(), "ddp", network=NETWORK))
    attempt(lambda: planned(transformer(), topology=preset("star", gpus=8, gb_per_s=1)))
    attempt(lambda: planned(transformer(), ahead=-1))
    attempt(lambda: planned(transformer(), shard=True, optimizer=torch.optim.Adafactor))
    model = transformer(0, 2, rank % 2, tensor)
    optimizer = planned(model, data=data, **settings)
    mine = slice(0, ROWS)
    loss_of(model, words(0, ROWS), mine).backward()
    loss = loss_of(model, words(1, ROWS), mine)
    attempt(lambda: loss_of(model, words(2, ROWS), mine))
    loss.backward()
    optimizer.close()
    swapped = transformer(0, 2, rank % 2, tensor)
    rows = list(swapped)
    optimizer = planned(swapped, data=data, **settings)
    attempt(lambda: loss_of(torch.nn.Sequential(rows[0], rows[2], rows[1], *rows[3:]), words(0, ROWS), mine))
    optimizer.close()
    other = transformer(0, 2, rank % 2, tensor, layers=1)
    optimizer = planned(other, data=data, shard=True, **settings)
    other.eval()
    attempt(lambda: loss_of(other, words(0, ROWS), mine))
    state = {"times": {}, "ready": [], "elements": [1] * 4}
    attempt(lambda: optimizer.schedule.load({"whole_plan": state}))
    optimizer.close()
    return {"said": said}


def quick(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All of it, in one launch."""
    return {
        "templates": templates(rank, size, folder, every=False),
        "carried": carried(rank, size, folder),
        "training": training(rank, size, folder, ("centauri", *FORCED)),
        "refused": refused(rank, size, folder),
    }


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Replicas keep parts of weights, beside DistributedDataParallel; then the last rank dies."""
    del folder
    whole, model = transformer(), transformer(rank)
    found: dict[str, Any] = {"said": "", "step": -1}
    plain = torch.optim.AdamW(whole.parameters(), lr=1e-3)
    beside = DistributedDataParallel(whole)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = schedule(
        model, optimizer, "centauri", recorded=3, shard=True, ahead=0, timeout_s=120, budget=20, most_pieces=2
    )
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    try:
        for step in range(12):
            found["step"] = step
            if step == 11 and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            batch = words(step, size * ROWS)
            optimizer.zero_grad()
            loss_of(model, batch, mine).backward()
            optimizer.step()
            if step < 10:
                plain.zero_grad()
                loss_of(beside, batch, mine).backward()
                plain.step()
            if step == 9:
                found["distance"] = distance(model, whole, 1, 0)
                found["planned"] = optimizer.schedule.planned
    except CheckError as error:
        found["said"] = str(error)
    return found


POLICIES: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (name, settings) for name, settings in SETTINGS.items()},
    "centauri, sharded": ("centauri", {**SETTINGS["centauri"], "shard": True}),
    "forced": (Forced.of(), {}),
    "forced, sharded": (Forced.of(), {"shard": True}),
}
MODES = {
    "templates": templates,
    "training": training,
    "carried": carried,
    "refused": refused,
    "quick": quick,
    "killed": killed,
}

if __name__ == "__main__":
    main(MODES)
