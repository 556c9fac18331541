"""One rank that makes every kind of call that programs make of torch.distributed, in several settings."""

from __future__ import annotations

import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from worker import RANK, RANKS, world

warnings.simplefilter("ignore")  # what torch says about names that it renames
Case = Callable[[], None]
CASES: dict[str, Case] = {}
SUM = sum(range(RANKS))


def same(found: torch.Tensor, wanted: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype).reshape(found.shape))


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def ramp(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(count) % 5 + RANK).to(dtype)


def ramps(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [(torch.arange(count) % 5 + rank).to(dtype) for rank in range(RANKS)]


@case
def all_reduce_of_every_type() -> None:
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    ):
        data = ramp(37, dtype)
        dist.all_reduce(data)
        same(data, sum(ramps(37, dtype)))


@case
def all_reduce_by_every_operation() -> None:
    stacked = torch.stack(ramps(11))
    for op, wanted in (
        (dist.ReduceOp.SUM, stacked.sum(0)),
        (dist.ReduceOp.AVG, stacked.mean(0)),
        (dist.ReduceOp.MIN, stacked.min(0).values),
        (dist.ReduceOp.MAX, stacked.max(0).values),
        (dist.ReduceOp.PRODUCT, stacked.prod(0)),
    ):
        data = ramp(11)
        dist.all_reduce(data, op)
        same(data, wanted)


@case
def all_reduce_of_bits() -> None:
    numbers = [1 << rank | 64 for rank in range(RANKS)]
    for op, wanted in ((dist.ReduceOp.BOR, 64 | (1 << RANKS) - 1), (dist.ReduceOp.BAND, 64)):
        data = torch.tensor([numbers[RANK]])
        dist.all_reduce(data, op)
        same(data, [wanted])


@case
def all_reduce_async_has_results_and_a_future() -> None:
    data = ramp(9)
    work = dist.all_reduce(data, async_op=True)
    future = work.get_future()
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    same(future.wait()[0], sum(ramps(9)))
    same(work.result()[0], sum(ramps(9)))
    same(work.get_future().then(lambda found: found.value()[0] * 2).wait(), 2 * sum(ramps(9)))


@case
def all_reduce_of_strided_tensors() -> None:
    """Gloo reduces what lies between, too."""
    whole = torch.zeros(6, 4)
    whole[:, 1] = ramp(6)
    dist.all_reduce(whole[:, 1])
    same(whole[:, 1], sum(ramps(6)))
    same(whole[:, 0], torch.zeros(6))
    turned = ramp(12).reshape(3, 4).t()
    dist.all_reduce(turned)
    same(turned, sum(ramps(12)).reshape(3, 4).t())


@case
def all_reduce_of_nothing_and_of_one() -> None:
    nothing, one = torch.empty(0), torch.tensor(float(RANK))
    dist.all_reduce(nothing)
    dist.all_reduce(one)
    same(one, SUM)


@case
def all_reduce_of_complex_and_of_parameters() -> None:
    data = torch.full((3,), complex(RANK, 1))
    dist.all_reduce(data)
    assert data.tolist() == [complex(SUM, RANKS)] * 3
    parameter = torch.nn.Parameter(ramp(4))
    dist.all_reduce(parameter.data)
    same(parameter.data, sum(ramps(4)))


@case
def broadcast_from_every_rank() -> None:
    for root in range(RANKS):
        for dtype in (torch.float32, torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn):
            data = torch.full((5,), RANK + 1).to(dtype)
            dist.broadcast(data, src=root)
            assert data.float().tolist() == torch.full((5,), root + 1).to(dtype).float().tolist()
    whole = torch.full((4, 3), float(RANK))
    dist.broadcast(whole[:, 2], src=1)
    assert whole[:, 2].tolist() == [1.0] * 4
    assert whole[:, 0].tolist() == [float(RANK)] * 4


@case
def all_gather_in_one() -> None:
    output = torch.empty(RANKS * 7)
    dist.all_gather_into_tensor(output, ramp(7))
    same(output, torch.cat(ramps(7)))
    strided = torch.empty(7, RANKS).t()
    dist.all_gather_into_tensor(strided, ramp(7).reshape(1, 7))
    same(strided, torch.stack(ramps(7)))


@case
def all_gather_of_a_block_at_its_place() -> None:
    """As FSDP does: the input is part of the output."""
    output = torch.zeros(RANKS * 6)
    own = output[RANK * 6 : (RANK + 1) * 6]
    own.copy_(ramp(6))
    dist.all_gather_into_tensor(output, own)
    same(output, torch.cat(ramps(6)))
    shifted = torch.zeros(RANKS * 6)
    shifted[:6] = ramp(6)
    dist.all_gather_into_tensor(shifted, shifted[:6])
    same(shifted, torch.cat(ramps(6)))


@case
def all_gather_in_a_list() -> None:
    for dtype in (torch.float32, torch.bool, torch.complex64):
        parts = [torch.empty(2, 3, dtype=dtype) for _ in range(RANKS)]
        dist.all_gather(parts, ramp(6, dtype).reshape(2, 3))
        for part, wanted in zip(parts, ramps(6, dtype), strict=True):
            assert part.reshape(-1).tolist() == wanted.tolist()


@case
def all_gather_of_different_sizes() -> None:
    """Gloo refuses."""
    for dtype in (torch.float32, torch.complex64):
        parts = [torch.empty(rank + 1, dtype=dtype) for rank in range(RANKS)]
        dist.all_gather(parts, ramp(RANK + 1, dtype))
        for rank, part in enumerate(parts):
            assert part.tolist() == ramps(rank + 1, dtype)[rank].tolist()


@case
def reduce_scatter_in_one() -> None:
    output = torch.empty(5)
    dist.reduce_scatter_tensor(output, ramp(5 * RANKS))
    wanted = sum(ramps(5 * RANKS))
    same(output, wanted[RANK * 5 : (RANK + 1) * 5])
    given = ramp(5 * RANKS)
    own = given[RANK * 5 : (RANK + 1) * 5]
    dist.reduce_scatter_tensor(own, given, dist.ReduceOp.AVG)
    same(own, wanted[RANK * 5 : (RANK + 1) * 5] / RANKS)
    strided = torch.zeros(5, 2)
    dist.reduce_scatter_tensor(strided[:, 0], ramp(5 * RANKS))
    same(strided[:, 0], output)


@case
def reduce_scatter_of_a_list() -> None:
    for sizes in ([3] * RANKS, list(range(1, RANKS + 1))):
        output = torch.empty(sizes[RANK])
        dist.reduce_scatter(output, [ramp(size) for size in sizes])
        same(output, sum(ramps(sizes[RANK])))


@case
def all_to_all_in_one() -> None:
    output, given = torch.empty(2 * RANKS), torch.arange(2.0 * RANKS) + 100 * RANK
    dist.all_to_all_single(output, given)
    same(output, torch.cat([torch.arange(2.0) + 2 * RANK + 100 * rank for rank in range(RANKS)]))


@case
def all_to_all_of_different_sizes() -> None:
    sends = [(RANK + peer) % 3 for peer in range(RANKS)]
    output, given = torch.empty(sum(sends)), torch.full((sum(sends),), float(RANK))
    dist.all_to_all_single(output, given, sends, sends)
    same(output, torch.cat([torch.full((size,), float(rank)) for rank, size in enumerate(sends)]))
    outputs = [torch.empty(2) for _ in range(RANKS)]
    dist.all_to_all(outputs, [torch.full((2,), float(10 * RANK + peer)) for peer in range(RANKS)])
    assert [part[0].item() for part in outputs] == [10.0 * rank + RANK for rank in range(RANKS)]


@case
def what_is_not_planned_runs_on_gloo() -> None:
    data = ramp(4)
    dist.reduce(data, dst=1)
    if RANK == 1:
        same(data, sum(ramps(4)))
    parts = [torch.empty(3) for _ in range(RANKS)] if RANK == 2 else None
    dist.gather(ramp(3), parts, dst=2)
    if parts is not None:
        same(torch.stack(parts), torch.stack(ramps(3)))
    own = torch.empty(3)
    dist.scatter(own, ramps(3) if RANK == 0 else None, src=0)
    same(own, ramps(3)[RANK])


@case
def sends_and_receives() -> None:
    right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    found = torch.empty(5)
    if RANK % 2:
        dist.recv(found, left, tag=3)
        dist.send(ramp(5), right, tag=3)
    else:
        dist.send(ramp(5), right, tag=3)
        dist.recv(found, left, tag=3)
    same(found, ramps(5)[left])
    works = [dist.isend(ramp(5), right), dist.irecv(found, left)]
    [work.wait() for work in works]
    same(found, ramps(5)[left])
    ops = [dist.P2POp(dist.isend, ramp(4), right), dist.P2POp(dist.irecv, found[:4], left)]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    same(found[:4], ramps(4)[left])
    if RANK == 0:
        senders = {dist.recv(found, tag=99) for _ in range(RANKS - 1)}
        assert senders == set(range(1, RANKS))
    else:
        dist.send(ramp(5), 0, tag=99)


@case
def tags_of_messages_are_apart_from_schedules() -> None:
    right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    data, found = ramp(20_000), [torch.empty(50) for _ in range(8)]
    receives = [dist.irecv(part, left, tag=tag) for tag, part in enumerate(found)]
    work = dist.all_reduce(data, async_op=True)
    sends = [dist.isend(ramp(50) + tag, right, tag=tag) for tag in range(8)]
    [each.wait() for each in (*receives, *sends, work)]
    same(data, sum(ramps(20_000)))
    for tag, part in enumerate(found):
        same(part, ramps(50)[left] + tag)


@case
def barriers() -> None:
    data = ramp(1000)
    work = dist.all_reduce(data, async_op=True)
    dist.barrier()
    assert work.is_completed()
    if RANK == 0:
        time.sleep(0.2)
    came = time.monotonic()  # one clock for all processes of a host
    dist.barrier(async_op=True).wait()
    left = time.monotonic()
    arrivals: list[Any] = [None] * RANKS
    dist.all_gather_object(arrivals, came)
    assert left >= max(arrivals)


@case
def objects() -> None:
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, {"rank": RANK, "words": "x" * 100 * RANK})
    assert [each["rank"] for each in found] == list(range(RANKS))
    told = [f"from {RANK}", RANK]
    dist.broadcast_object_list(told, src=1)
    assert told == ["from 1", 1]
    gathered: list[Any] | None = [None] * RANKS if RANK == 0 else None
    dist.gather_object(RANK * 2, gathered, dst=0)
    assert gathered is None or gathered == [2 * rank for rank in range(RANKS)]
    own: list[Any] = [None]
    dist.scatter_object_list(
        own, [f"to {rank}" for rank in range(RANKS)] if RANK == 0 else [None] * RANKS, src=0
    )
    assert own == [f"to {RANK}"]


@case
def coalescing_manager() -> None:
    """Gloo has none: with it, later calls are queued and never run."""
    tensors = [ramp(5), ramp(9)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    same(tensors[1], sum(ramps(9)))
    outputs = [torch.empty(RANKS * 2), torch.empty(RANKS * 3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as together:
        for size, output in zip((2, 3), outputs, strict=True):
            dist.all_gather_into_tensor(output, ramp(size))
    together.wait()
    same(outputs[1], torch.cat(ramps(3)))
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as together:
        for size, output in zip((2, 3), outputs, strict=True):
            dist.reduce_scatter_tensor(output[:size], ramp(size * RANKS))
    together.wait()
    same(outputs[1][:3], sum(ramps(3 * RANKS))[RANK * 3 : (RANK + 1) * 3])
    data = ramp(4)
    dist.all_reduce(data)
    same(data, sum(ramps(4)))


@case
def coalescing_of_messages() -> None:
    right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    found = torch.empty(5)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as together:
        dist.isend(ramp(5), right)
        dist.irecv(found, left)
    together.wait()
    same(found, ramps(5)[left])


@case
def coalesced_calls() -> None:
    tensors = [ramp(3), ramp(4)]
    dist.all_reduce_coalesced(tensors)
    same(tensors[1], sum(ramps(4)))
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(RANKS)]
    dist.all_gather_coalesced(lists, [ramp(2), ramp(3)])
    for rank, (two, three) in enumerate(lists):
        same(two, ramps(2)[rank])
        same(three, ramps(3)[rank])


@case
def old_and_new_names_of_methods() -> None:
    group: Any = dist.group.WORLD
    output = torch.empty(RANKS * 2)
    for gather in (group.all_gather_single, group._allgather_base):
        gather(output.zero_(), ramp(2)).wait()
        same(output, torch.cat(ramps(2)))
    for gather in (group.all_gather_single_coalesced, group.allgather_into_tensor_coalesced):
        gather([output.zero_()], [ramp(2)]).wait()
        same(output, torch.cat(ramps(2)))
    own = torch.empty(2)
    for scatter in (group.reduce_scatter_single, group._reduce_scatter_base):
        scatter(own.zero_(), ramp(2 * RANKS)).wait()
        same(own, sum(ramps(2 * RANKS))[2 * RANK : 2 * RANK + 2])
    for scatter in (group.reduce_scatter_single_coalesced, group.reduce_scatter_tensor_coalesced):
        scatter([own.zero_()], [ramp(2 * RANKS)]).wait()
        same(own, sum(ramps(2 * RANKS))[2 * RANK : 2 * RANK + 2])
    for change in (group.all_to_all_single, group.alltoall_base):
        change(output.zero_(), ramp(2 * RANKS), [], []).wait()
        same(output, torch.cat([each[2 * RANK : 2 * RANK + 2] for each in ramps(2 * RANKS)]))
    data = ramp(3)
    group.allreduce(data, dist.ReduceOp.MAX).wait()
    same(data, ramps(3)[-1])
    group.broadcast(data.fill_(RANK), 2).wait()
    same(data, torch.full((3,), 2.0))
    parts = [torch.empty(1) for _ in range(RANKS)]
    group.allgather(parts, torch.full((1,), float(RANK))).wait()
    assert [part.item() for part in parts] == list(range(RANKS))
    group.barrier().wait()


@case
def functional_collectives() -> None:
    everyone = list(range(RANKS))
    same(functional.all_reduce(ramp(5), "sum", everyone), sum(ramps(5)))
    same(functional.all_gather_tensor(ramp(4), 0, everyone), torch.cat(ramps(4)))
    wanted = sum(ramps(4 * RANKS))[4 * RANK : 4 * RANK + 4]
    same(functional.reduce_scatter_tensor(ramp(4 * RANKS), "sum", 0, everyone), wanted)
    same(functional.broadcast(ramp(3), 1, everyone), ramps(3)[1])
    found = functional.all_to_all_single(ramp(2 * RANKS), [2] * RANKS, [2] * RANKS, everyone)
    same(found, torch.cat([each[2 * RANK : 2 * RANK + 2] for each in ramps(2 * RANKS)]))
    for count, each in zip(
        (3, 4), functional.all_reduce_coalesced([ramp(3), ramp(4)], "sum", everyone), strict=True
    ):
        same(each, sum(ramps(count)))
    gathered = functional.all_gather_into_tensor_coalesced([ramp(3), ramp(4)], everyone)
    same(gathered[1], torch.cat(ramps(4)))
    scattered = functional.reduce_scatter_tensor_coalesced(
        [ramp(RANKS), ramp(2 * RANKS)], "sum", [0, 0], everyone
    )
    same(scattered[1], sum(ramps(2 * RANKS))[2 * RANK : 2 * RANK + 2])


@case
def sharded_tensors() -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    whole = torch.arange(RANKS * 6.0).reshape(RANKS * 2, 3)
    shards = distribute_tensor(whole, mesh, [Shard(0)])
    same(shards.to_local(), whole[2 * RANK : 2 * RANK + 2])
    same(shards.full_tensor(), whole)
    uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    same(uneven.full_tensor(), torch.arange(7.0))
    columns = shards.redistribute(mesh, [Shard(1)])
    same(columns.full_tensor(), whole)
    partial = torch.distributed.tensor.DTensor.from_local(ramp(RANKS), mesh, [Partial()])
    same(partial.redistribute(mesh, [Replicate()]).to_local(), sum(ramps(RANKS)))
    same(partial.redistribute(mesh, [Shard(0)]).to_local(), sum(ramps(RANKS))[RANK : RANK + 1])


@case
def groups_within_the_world() -> None:
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = halves[RANK % 2]
    data = torch.tensor([float(RANK)])
    dist.all_reduce(data, group=mine)
    same(data, [2.0 if RANK % 2 == 0 else 4.0])
    output = torch.empty(2)
    dist.all_gather_into_tensor(output, torch.tensor([float(RANK)]), group=mine)
    assert output.tolist() == [RANK % 2, RANK % 2 + 2]
    dist.broadcast(data, src=RANK % 2 + 2, group=mine)
    assert dist.get_backend(mine) == dist.get_backend()
    alone = [dist.new_group([rank]) for rank in range(RANKS)][RANK]
    dist.all_reduce(data, group=alone)
    dist.barrier(group=alone)
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    data = torch.tensor([float(RANK)])
    dist.all_reduce(data, group=grid["columns"].get_group())
    same(data, [1.0 if RANK < 2 else 5.0])
    for group in (mine, alone):
        dist.destroy_process_group(group)


@case
def another_backend_beside_it() -> None:
    beside = dist.new_group(backend="gloo")
    data = ramp(3)
    dist.all_reduce(data, group=beside)
    same(data, sum(ramps(3)))
    dist.monitored_barrier(group=beside, timeout=timedelta(seconds=20))
    dist.destroy_process_group(beside)


@case
def monitored_barrier_is_for_gloo_only() -> None:
    if dist.get_backend() == "gloo":
        dist.monitored_barrier()
        return
    with pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()


@case
def order_of_issue_is_kept() -> None:
    """Many at once, waited for backwards, some of them by gloo."""
    tensors = [ramp(10 + 7 * number) for number in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    other = ramp(3)
    works.append(dist.reduce(other, dst=0, async_op=True))
    [work.wait() for work in reversed(works)]
    for number, tensor in enumerate(tensors):
        same(tensor, sum(ramps(10 + 7 * number)))


@case
def calls_from_another_thread() -> None:
    data = ramp(6)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            dist.all_reduce(data)
        except Exception as error:  # noqa: BLE001  (it is the outcome)
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    same(data, sum(ramps(6)))


@case
def wait_with_a_timeout() -> None:
    data = ramp(6)
    work = dist.all_reduce(data, async_op=True)
    assert work.wait(timedelta(seconds=20))
    same(data, sum(ramps(6)))


@case
def group_knows_itself() -> None:
    group: Any = dist.group.WORLD
    assert (group.rank(), group.size()) == (RANK, RANKS)
    if dist.get_backend() == "coppice":
        assert group.name() == group.getBackendName() == "coppice"
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=33), group)
        assert group._timeout_s() == 33


def planned_calls(mode: str) -> dict[str, int]:
    """How often the schedule or the shared memory is used, and not gloo."""
    if mode == "gloo":
        return {}
    group: Any = dist.group.WORLD
    [path] = group._paths.values()
    counts: dict[str, int] = {}
    run = path.run

    def counted(collective: Any, *arguments: Any, **options: Any) -> None:
        counts[collective.value] = counts.get(collective.value, 0) + 1
        run(collective, *arguments, **options)

    path.run = counted
    data, wide = ramp(RANKS), torch.empty(RANKS * RANKS)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        dist.all_reduce(data, op)
    dist.broadcast(data, 0)
    dist.all_gather_into_tensor(wide, data)
    dist.reduce_scatter_tensor(data[:1], data.clone())
    dist.all_to_all_single(data, data.clone())
    path.run = run
    return counts


def calls(*modes: str) -> dict[str, Any]:
    """What became of every case in every setting, or in some."""
    outcome: dict[str, Any] = {}
    for mode in modes or ("shm", "messages", "gloo"):
        results: dict[str, str] = {}
        with world(mode, name="calls"):
            for name, function in CASES.items():
                if mode == "gloo" and name in BEYOND_GLOO:
                    continue
                try:
                    function()
                    results[name] = ""
                except Exception:  # noqa: BLE001  (it is the outcome)
                    results[name] = traceback.format_exc()
                    break  # the ranks are not together any more
            results["planned_calls"] = planned_calls(mode) if not any(results.values()) else {}  # type: ignore[assignment]
        outcome[mode] = results
    return outcome


BEYOND_GLOO = (
    "all_reduce_of_strided_tensors",
    "all_gather_of_different_sizes",
    "coalescing_manager",
    "coalescing_of_messages",
    "broadcast_from_every_rank",
    "all_gather_in_one",
    "reduce_scatter_in_one",
    "reduce_scatter_of_a_list",
    "old_and_new_names_of_methods",
    "barriers",
)
