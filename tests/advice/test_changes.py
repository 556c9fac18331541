"""Channels, orders of ranks and topology files as changes: times are those of another way to the same figure."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

import coppice
from coppice.advice.channels import BUDGETS, LIMIT, contention_of, most_channels
from coppice.advice.nccl import NcclState
from coppice.advice.page import page_lines
from coppice.advice.step import NcclCosts, name_of, step_advice
from coppice.collectives import Collective
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.simulation.channels import transport_profile
from coppice.topology.composition.compose import Host, compose, default_ports, gpu_ports, repeated
from coppice.topology.composition.fabric import FatTreeFabric
from coppice.topology.model import Topology
from coppice.topology.operations import subset
from coppice.topology.presets import preset
from support.shared_data import SHARED

JOB = """
model.name = "{model}"
cluster = {{topology = "{topology}", boxes = {boxes}}}
layout = {{tp = {tensor}, global_batch = {batch}, shard = "{shard}"}}
run = {{policy = "{policy}"}}
"""


def job(
    model: str, topology: str, boxes: int, tensor: int, batch: int, shard: str, policy: str
) -> TrainingJob:
    words = {"model": model, "topology": topology, "boxes": boxes, "tensor": tensor, "batch": batch}
    return job_of(parse_job_record(JOB.format(**words, shard=shard, policy=policy), where="job.toml"))


def seconds_with(given: TrainingJob, costs: NcclCosts, contention: float | None = None) -> float:
    kind = given.machines.kinds[0]
    machines = replace(given.machines, kinds=(replace(kind, cluster=replace(kind.cluster, costs=costs)),))
    return simulated_job(given, machines=machines, contention=contention).seconds


def test_fewer_channels_give_products_back_what_they_took() -> None:
    """Gathers of parameters over NICs need fewer channels than they take: the step is faster with less of them."""
    fsdp = job("gpt-7.5b", "dgx-h100", 8, 2, 64, "zero3", "fsdp")
    state = NcclState(topology=preset("dgx-h100", boxes=8))
    found = step_advice(fsdp, state, [])
    (change,) = found.changes
    assert change.what.startswith("max_ctas = 12 in the options of the process groups of 32 ranks 2 apart")
    best = min(found.budgets, key=lambda each: each.seconds)
    assert (best.group, best.channels) == ("32 ranks 2 apart", 12)
    assert found.best_seconds == best.seconds < 0.98 * found.picked_seconds
    # A limit for all groups is what the variable makes of the step.
    for each in found.budgets:
        if each.group == "all groups" and each.channels in (4, 12):
            limited = replace(state, environment={LIMIT: str(each.channels)})
            assert step_advice(fsdp, limited, []).picked_seconds == each.seconds
    # The collectives alone take no less with fewer channels, and one channel takes the longest.
    for name in {each.group for each in found.budgets}:
        times = [each.exchange_us for each in found.budgets if each.group == name][1:]
        assert times == sorted(times, reverse=True)
    free, *_ = found.budgets
    assert free.channels is None
    assert found.picked_seconds == free.seconds


def test_what_channels_take_is_the_contention_of_the_simulator() -> None:
    """One group, whose calls all take the same channels: the step is that of a job with this share of contention."""
    ddp = job("resnet-50", "dgx-a100", 2, 1, 512, "none", "ddp")
    state = NcclState(topology=preset("dgx-a100", boxes=2), environment={LIMIT: "4"})
    costs = NcclCosts(state, ddp.cluster.device.processors)
    with_channels = seconds_with(ddp, costs)
    taken = {
        cost for what, size, group in costs.calls for cost in costs.cost(what, size, group).loads.values()
    }
    assert taken == {contention_of(4, 108)}
    assert with_channels == seconds_with(ddp, NcclCosts(state), contention_of(4, 108))
    assert with_channels > seconds_with(ddp, NcclCosts(state))


def test_what_a_job_measured_stands_for_channels() -> None:
    measured = job("resnet-50", "dgx-a100", 2, 1, 512, "none", "ddp")
    measured = replace(measured, run=msgspec.structs.replace(measured.run, contention=0.2))
    found = step_advice(measured, NcclState(topology=preset("dgx-a100", boxes=2)), [])
    assert found.budgets == ()


def test_nothing_overlaps_nothing_is_gained() -> None:
    alone = job("gpt-7.5b", "dgx-h100", 2, 8, 32, "none", "none")
    found = step_advice(alone, NcclState(topology=preset("dgx-h100", boxes=2)), [])
    assert found.changes == ()
    limits = [each for each in found.budgets if each.channels is not None]
    assert {each.channels for each in limits} <= set(BUDGETS)
    assert all(each.seconds >= found.picked_seconds for each in limits)


def test_limits_that_a_job_has_are_found(tmp_path: Path) -> None:
    """Half of the channels carry what the protocol's profile says of them, and NCCL picks as if it had all."""
    box = preset("dgx-a100")
    free, half = (NcclState(topology=box, environment=env) for env in ({}, {"NCCL_MAX_NCHANNELS": "12"}))
    assert most_channels(half.environment) == 12
    (before, *_), (after, *_) = (state.picks(Collective.ALL_REDUCE, [2**30])[2**30] for state in (free, half))
    assert (before.algorithm, before.protocol) == (after.algorithm, after.protocol)
    assert free.communicator()[0].channels == 24
    profile = transport_profile(box, protocol_name="simple", channels=12)
    assert after.gb_per_s == pytest.approx(float(profile.gpu_gb_per_s) / 2 * 8 / 14)
    assert before.gb_per_s == pytest.approx(240 * 8 / 14)
    log = tmp_path / "nccl.log"
    log.write_text("n1:7:7 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 12\n")
    (row,) = coppice.advise(box, sizes="1G", collectives="all_reduce", logs=[log]).rows
    assert (row.picked_us, row.best_us) == (after.time_us, before.time_us)
    assert row.change == "unset NCCL_MAX_NCHANNELS"


def four_leaves(order: list[int]) -> Topology:
    """Eight boxes on four leaves with a quarter of the rate upwards, started in some order."""
    box = preset("dgx-a100")
    fabric = FatTreeFabric(hosts_per_leaf=2, spines=2, oversubscription=Fraction(4))
    whole = compose(
        repeated(Host(name="box", topology=box, ports=gpu_ports(box, Fraction(25))), 8), fabric, name="leaves"
    )
    return subset(whole, [8 * host + gpu for host in order for gpu in range(8)])


def test_an_order_of_ranks_keeps_rings_below_their_leaves(tmp_path: Path) -> None:
    mixed, in_order = four_leaves([0, 2, 4, 6, 1, 3, 5, 7]), four_leaves(list(range(8)))
    found = coppice.advise(
        mixed, library="nccl", sizes="1G", collectives="all_gather", write=str(tmp_path / "advice")
    )
    (row,) = found.rows
    # Both boxes of a leaf send the whole buffer up, or one of them: a leaf has 16 ports of 25 GB/s and a quarter up.
    whole = 2**30 * 63 / 64
    assert row.picked_us == pytest.approx(2 * whole / 100e3)
    assert row.best_us == pytest.approx(whole / 100e3)
    assert row.change == "rank order"
    free = coppice.advise(in_order, library="nccl", sizes="1G", collectives="all_gather")
    assert free.rows[0].picked_us == pytest.approx(row.best_us)
    assert not free.changes
    (file,) = found.files
    hosts = (tmp_path / "advice" / "hosts.txt").read_text().split()
    assert sorted(hosts) == [f"box{i}" for i in range(8)]
    leaf = [int(host.removeprefix("box")) // 2 for host in hosts]
    assert sum(a != b for a, b in zip(leaf, leaf[1:] + leaf[:1], strict=True)) == 4
    assert file.judged == "8 hosts, each once"
    assert any("rings cross" in line for line in page_lines(found))


def test_a_topology_file_gives_ports_their_rates(tmp_path: Path) -> None:
    """NCCL takes ports of 200 Gbit/s for 10 Gbit/s: it picks other protocols, and the file makes it pick right."""
    dump = SHARED / "topologies" / "perlmutter_a100_4x_nid001056.xml"
    if not dump.exists():
        pytest.skip("the dumps of real machines are not beside the checkout")
    box = coppice.load(dump)
    two = compose(
        repeated(Host(name="node", topology=box, ports=default_ports(box)), 2),
        FatTreeFabric(hosts_per_leaf=2),
        name="two nodes",
    )
    slow = tmp_path / "slow.xml"
    slow.write_bytes(dump.read_bytes().replace(b'speed="200000"', b'speed="10000"'))
    found = coppice.advise(two, sizes="1K,1M,64M,1G", logs=[slow], write=str(tmp_path / "advice"))
    assert [change.name for change in found.changes] == ["topology file"]
    right = coppice.advise(two, sizes="1K,1M,64M,1G")
    # Times are those of the cluster as it is: of the same algorithm where NCCL picks the same, else no less.
    for row, other in zip(found.rows, right.rows, strict=True):
        assert row.best_us == pytest.approx(other.picked_us, rel=0.03)
        assert row.picked_us >= 0.999 * other.picked_us
        if row.picked == other.picked:
            assert row.picked_us == pytest.approx(other.picked_us)
    assert found.gaining
    (file,) = found.files
    written = tmp_path / "advice" / file.name
    assert written.read_text().count('speed="192000"') == 4
    assert coppice.doctor(written, target="nccl-topo").ok
    assert file.undo == "unset NCCL_TOPO_FILE"
    assert coppice.advise(two, sizes="1M", logs=[dump]).files[0].judged.startswith("no errors")


def test_groups_in_words() -> None:
    assert name_of(RankGroup(2, 8)) == "2 ranks 8 apart"
