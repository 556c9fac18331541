"""Plan, export, import: the program verifies, the doctor is content, and the schedule has the same transfers."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.program import CallKind, MscclOptions, program_for, serves_both
from coppice.export.msccl.reader import program_of
from coppice.export.msccl.targets import TARGETS, target_named
from coppice.export.msccl.writer import msccl_xml
from coppice.planners.planning import plan as make_plan
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.dialects.thread_blocks.to_schedule import to_schedule
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import Buffer
from coppice.schedule.files.plan_file import read_plan, write_plan
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology import Topology
from coppice.topology.presets import preset
from reference.oracle import SAMPLED_NAMES, oracle_topology
from reference.programs import built
from support.benchmark_scripts import BENCHMARKS, load_benchmark
from support.commands import run
from support.msccl_samples import all_pairs, gather, ring_all_reduce

COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
)


def plan_of(topology: Topology, collective: Collective, trees: int | None = 1) -> Plan:
    root = 0 if collective.rooted else None
    count = None if collective in (Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.REDUCE) else trees
    problem = Problem(topology=topology, collective=collective, root=root)
    return make_plan(problem, trees=count, ring=False).plan


def traffic(plan: Schedule | Forest) -> Counter[tuple[int, int, int, int]]:
    """Share of all data, in units of 1 / 10^6, by slot, operation, sender and receiver."""
    schedule = lower(plan) if isinstance(plan, Forest) else plan
    shares = np.bincount(
        schedule.chunk_slot, weights=schedule.chunk_share, minlength=len(schedule.slot_weight)
    )
    weight = int(schedule.slot_weight.sum())
    moved: dict[tuple[int, int, int, int], Fraction] = {}
    whole = schedule.collective is Collective.ALL_REDUCE
    columns = (schedule.chunk, schedule.op, schedule.src, schedule.dst)
    for chunk, op, src, dst in zip(*(column.tolist() for column in columns), strict=True):
        slot = int(schedule.chunk_slot[chunk])
        share = Fraction(
            int(schedule.chunk_share[chunk]) * int(schedule.slot_weight[slot]), int(shares[slot]) * weight
        )
        key = (0 if whole else slot, op, src, dst)
        moved[key] = moved.get(key, Fraction(0)) + share
    return Counter({key: round(share * 10**6) for key, share in moved.items()})


def check(plan: Plan, target: str, calls: CallKind | None = None) -> Program:
    """The program of a plan in a file of a target, read back."""
    program = program_for(plan.body, target, MscclOptions(calls=calls))
    text = msccl_xml(program, target=target)
    ranks = program.num_ranks
    diagnosis = diagnose(text.encode(), target, ranks=ranks, sizes=(program.num_chunks * 4096,))
    assert diagnosis.ok, diagnosis
    again = program_of(parse_document(text.encode(), file="a.xml")).program
    assert verify_program(again).ok
    schedule = to_schedule(again, plan.topology)
    assert verify_schedule(schedule, relay_gpus=True).ok
    assert traffic(schedule) == traffic(plan.body)
    return again


@pytest.mark.parametrize("name", SAMPLED_NAMES)
@pytest.mark.spread(2)
def test_oracle_topologies(name: str) -> None:
    topology = oracle_topology(name)
    for collective in COLLECTIVES:
        plan = plan_of(topology, collective)
        for target in TARGETS:
            check(plan, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("collective", [*COLLECTIVES, Collective.ALL_TO_ALL])
def test_every_collective_in_place_and_out_of_place(collective: Collective, target: str) -> None:
    plan = plan_of(preset("star", gpus=4), collective)
    for place in [CallKind.OUT] if collective is Collective.ALL_TO_ALL else [CallKind.IN, CallKind.OUT]:
        program = check(plan, target, place)
        assert (program.in_place, program.out_of_place) == (place is CallKind.IN, place is CallKind.OUT)
    program = check(plan, target)
    both = serves_both(collective, target_named(target))
    assert both == (target != "msccl" and not (target == "rccl" and collective.reduces)) or not both
    assert (program.in_place and program.out_of_place) == both
    if both:
        assert check(plan, target, CallKind.BOTH).num_steps == program.num_steps
    else:
        with pytest.raises(InputError, match="found both: "):
            check(plan, target, CallKind.BOTH)


def test_two_mi250_boxes_fit_rccl() -> None:
    plan = plan_of(preset("mi250", boxes=2), Collective.ALL_REDUCE)
    assert check(plan, "rccl").most_blocks <= 64


def test_a_cap_on_channels_holds() -> None:
    plan = plan_of(preset("dgx-a100", boxes=2), Collective.ALL_GATHER, 2)
    assert program_for(plan.body, "azure-executor", MscclOptions(channels=1)).num_channels == 1


def test_a_plan_that_does_not_fit_says_by_how_much() -> None:
    plan = plan_of(preset("star", gpus=70), Collective.ALL_TO_ALL)
    with pytest.raises(CheckError, match=r"at most 64 thread blocks a rank, found \d+"):
        program_for(plan.body, "rccl")


@pytest.mark.parametrize("program", [gather(5), gather(3, in_place=False), all_pairs(5), ring_all_reduce(6)])
def test_programs_made_by_hand(program: Program) -> None:
    schedule = to_schedule(program, preset("star", gpus=program.num_ranks))
    report = verify_schedule(schedule)
    assert report.ok
    assert not report.redundant
    assert (schedule.step < 0).all()


def one_step_all_reduce(ranks: int) -> Program:
    """Everybody sends its whole input to everybody, and adds up what comes."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        peers = [other for other in range(ranks) if other != rank]
        for place, other in enumerate(peers):
            block = build.block(rank, send=other, recv=other)
            build.step(block, StepOp.SEND, src=(Buffer.INPUT, 0))
            build.step(block, StepOp.RECV, dst=(Buffer.SCRATCH, place))
        adder = build.block(rank)
        waits = [(place, 1) for place in range(len(peers))]
        for place in range(len(peers)):
            build.step(
                adder,
                StepOp.REDUCE,
                src=(Buffer.SCRATCH, place),
                dst=(Buffer.INPUT, 0),
                after=waits if place == 0 else [],
            )
    return built(build, Collective.ALL_REDUCE, ranks, 1, scratch=ranks - 1)


def test_values_that_cross_each_other_need_steps() -> None:
    schedule = to_schedule(one_step_all_reduce(4), preset("star", gpus=4))
    assert schedule.num_transfers == 12
    assert (schedule.step == 0).all()
    assert verify_schedule(schedule).ok


def recursive_doubling() -> Program:
    """Four ranks exchange sums with their neighbour, and then with the rank two away."""
    build = ProgramBuilder(4)
    for rank in range(4):
        for number, distance in enumerate((1, 2)):
            block = build.block(rank, send=rank ^ distance, recv=rank ^ distance)
            after = [(0, 2)] if number else []
            build.step(block, StepOp.SEND, src=(Buffer.INPUT, 0), after=after)
            build.step(block, StepOp.RECV, dst=(Buffer.SCRATCH, number))
            build.step(block, StepOp.REDUCE, src=(Buffer.SCRATCH, number), dst=(Buffer.INPUT, 0))
    return built(build, Collective.ALL_REDUCE, 4, 1, scratch=2)


def test_exchanges_that_build_on_each_other_are_steps_one_after_the_other() -> None:
    schedule = to_schedule(recursive_doubling(), preset("star", gpus=4))
    assert schedule.step.tolist() == [0] * 4 + [1] * 4
    assert verify_schedule(schedule).ok


def test_wrong_programs_are_not_imported() -> None:
    right = all_pairs(3)
    wrong = Program(
        **{
            **{name: getattr(right, name) for name in Program.__dataclass_fields__},
            "src_offset": np.where(right.op == StepOp.REDUCE, 0, right.src_offset).astype(np.int32),
        }
    )
    assert not verify_program(wrong).ok
    with pytest.raises(InputError, match="another value of a chunk"):
        to_schedule(wrong, preset("star", gpus=3))
    with pytest.raises(InputError, match="expected a topology of 3 ranks, as the program has, found 4"):
        to_schedule(right, preset("star", gpus=4))


def test_commands(tmp_path: Path) -> None:
    plan, xml, back = tmp_path / "plan.json", tmp_path / "a.xml", tmp_path / "back.json"
    write_plan(plan_of(preset("dgx-a100", boxes=2), Collective.ALL_GATHER), plan)
    code, _, notes = run(
        "export", plan, "--to", "msccl-xml", "--target", "rccl", "--size", "1M:1G", "-o", xml
    )
    assert code == 0
    assert "thread blocks of 64" in notes
    assert 'minBytes="1048576" maxBytes="1073741824"' in xml.read_text()
    code, out, _ = run("doctor", xml, "--target", "rccl", "--num-ranks", "16", "--size", "512K:2G")
    assert code == 1
    assert "512K: NOT used: minBytes is 1048576" in out
    assert "1M..1G: used" in out
    assert run("doctor", xml, "--target", "rccl", "--size", "1M:1G", "--json")[0] == 0
    assert run("doctor", xml, "--target", "rccl", "--num-ranks", "8")[0] == 1
    code, out, _ = run("import", xml, "--topology", "dgx-a100", "--boxes", "2", "-o", back)
    assert code == 0
    assert "no deadlock" in out
    assert traffic(read_plan(back).body) == traffic(read_plan(plan).body)
    code, out, _ = run("verify", xml)
    assert code == 0
    assert "all_gather of 16 ranks" in out
    assert "in place and out of place, connections of 2 messages" in out
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(re.sub('type="r"(.*)dstoff="3"', r'type="r"\1dstoff="4"', xml.read_text(), count=1))
    code, out, error = run("verify", wrong, "--json")
    assert code == 1
    assert '"verified": false' in out
    assert "does not verify" in error
    assert run("import", wrong, "-o", back)[0] == 1
    code, _, error = run("import", xml, "--topology", "star", "-o", back)
    assert code == 2
    assert "expected a topology of 16 ranks" in error
    # A file of one target becomes one of another.
    assert run("export", xml, "--to", "msccl-xml", "--target", "msccl", "-o", tmp_path / "b.xml")[0] == 0
    assert run("doctor", tmp_path / "b.xml", "--target", "msccl")[0] == 0
    for arguments, words in (
        (("--to", "msccl-xml"), "expected `--target`"),
        (("--to", "msccl-xml", "--target", "nccl"), "expected a target"),
        (("--to", "msccl-xml", "--target", "rccl", "--protocol", "ll"), "expected `--protocol`"),
        (("--to", "msccl-xml", "--target", "rccl", "--size", "0"), "expected `--size` of 1 byte or more"),
        (("--to", "msccl-xml", "--target", "rccl", "--size", "1G:1M"), "to rise from 1 byte"),
        (("--to", "msccl-xml", "--target", "rccl", "--trees", "0"), "expected `--trees` to be a number"),
        (("--to", "msccl-xml", "--target", "msccl", "--in-place", "--out-of-place"), "takes a file for one"),
        (
            ("--to", "msccl-xml", "--target", "rccl", "--boxes", "2"),
            "--boxes does not go with --to msccl-xml",
        ),
        (("--to", "msccl-xlm"), "there is no export 'msccl-xlm'"),
        (("--to", "rank-order", "--target", "rccl"), "--target does not go with --to rank-order"),
    ):
        code, _, error = run("export", plan, *arguments)
        assert code == 2
        assert words in error


@pytest.fixture(name="safety")
def fixture_safety(monkeypatch: pytest.MonkeyPatch):
    """The script that makes the table."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("export_safety")


def test_a_preset_whose_exports_hung(safety) -> None:
    """All sends first, the all-reduce of a DGX-1V deadlocks for two targets."""
    [(label, topology)] = safety.topologies(8, "dgx-1v")
    found = list(safety.verdicts(topology))
    assert label == "dgx-1v"
    assert len(found) == 22
    assert {verdict.word for *_, verdict in found} == {safety.SAFE}
    assert sum(verdict.sends_first for *_, verdict in found) == 2


@pytest.mark.parametrize(
    ("only", "exports"),
    [
        ("dgx-h100 x 16", 6),
        pytest.param("dgx-a100 x 32", 4, marks=pytest.mark.slow),
        pytest.param("torus of 8 x 16", 4, marks=pytest.mark.slow),
    ],
)
def test_clusters_of_128_and_256_ranks(safety, only: str, exports: int) -> None:
    """A part of the table of large clusters."""
    [(label, topology)] = safety.large_topologies(only)
    assert label == only
    assert topology.num_ranks in (128, 256)
    chosen = {
        6: (Collective.ALL_GATHER, Collective.BROADCAST),
        4: (Collective.BROADCAST, Collective.REDUCE),
    }[exports]
    targets = ("rccl", "azure-executor", "msccl") if exports == 6 else ("rccl", "msccl")
    found = list(safety.verdicts(topology, chosen, targets))
    assert len(found) == exports
    assert {verdict.word for *_, verdict in found} <= {safety.SAFE, safety.LIMITED}


def test_all_to_all_of_many_ranks_on_direct_links_is_left_out(safety) -> None:
    assert Collective.ALL_TO_ALL not in safety.judged_collectives("torus of 8 x 16")
    assert Collective.ALL_TO_ALL in safety.judged_collectives("dgx-h100 x 16")
    assert Collective.ALL_TO_ALL in safety.judged_collectives("torus")


@pytest.mark.slow
def test_every_preset(safety) -> None:
    for label, topology in safety.topologies(64, "*"):
        for collective, target, verdict in safety.verdicts(topology):
            assert verdict.word != safety.HANGS, (label, collective, target)
