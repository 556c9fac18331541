"""Plan, export, import: the program verifies, the doctor is content, and the schedule has the same transfers."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError
from coppice.export.mscclpp.document import parse_document
from coppice.export.mscclpp.limits import block_excesses, largest_message, size_unit
from coppice.export.mscclpp.program import MscclppOptions, one_sided_for
from coppice.export.mscclpp.reader import program_of
from coppice.export.mscclpp.writer import mscclpp_json
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.planning import plan as make_plan
from coppice.program.dialects.puts.lower import lower_one_sided
from coppice.program.dialects.puts.program import OneSidedProgram
from coppice.program.dialects.puts.to_schedule import one_sided_to_schedule
from coppice.program.dialects.puts.verify import verify_one_sided
from coppice.schedule.files.plan_file import read_plan, write_plan
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology import Topology, subset
from coppice.topology.presets import preset
from reference.oracle import SAMPLED_NAMES, oracle_topology
from support.commands import run
from support.mscclpp_samples import SAMPLES, pair, text

COLLECTIVES = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE, Collective.ALL_TO_ALL)


def plan_of(topology: Topology, collective: Collective, trees: int | None = 1) -> Plan:
    count = None if collective is Collective.ALL_TO_ALL else trees
    return make_plan(Problem(topology=topology, collective=collective), trees=count, ring=False).plan


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


def check(plan: Plan, **form: Any) -> OneSidedProgram:
    """The program of a plan in a file, read back."""
    program = one_sided_for(plan.body, MscclppOptions(**form))
    written = mscclpp_json(program).encode()
    again = program_of(parse_document(written, file="p.json")).program
    assert mscclpp_json(again).encode() == written
    diagnosis = diagnose(written, "mscclpp", ranks=again.num_ranks, sizes=(size_unit(again) * 64,))
    assert diagnosis.ok, diagnosis
    assert not diagnosis.findings, diagnosis.findings
    if again.num_operations < 2500:  # the same bytes say that it is the program that was verified
        report = verify_one_sided(again)
        assert report.ok, report.failures
        assert not report.warnings
    schedule = one_sided_to_schedule(again, plan.topology)
    assert verify_schedule(schedule, relay_gpus=True).ok
    assert traffic(schedule) == traffic(plan.body)
    return again


LARGE = ("mi250x2", "h100x4_8gpu")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(*each.values, marks=pytest.mark.slow) if each.values[0] in LARGE else each
        for each in SAMPLED_NAMES
    ],
)
@pytest.mark.spread(2)
def test_oracle_topologies(name: str) -> None:
    topology = oracle_topology(name)
    for collective in COLLECTIVES:
        check(plan_of(topology, collective))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "topology", [preset("star", gpus=4), preset("dgx-a100", boxes=2)], ids=["star", "boxes"]
)
def test_in_place_and_out_of_place(collective: Collective, topology: Topology) -> None:
    plan = plan_of(topology, collective)
    for in_place in [False] if collective is Collective.ALL_TO_ALL else [True, False]:
        program = check(plan, in_place=in_place)
        assert program.in_place == in_place
        ports = {(end.rank // 8, end.peer // 8) for end in program.channels if end.port}
        memory = {(end.rank // 8, end.peer // 8) for end in program.channels if not end.port}
        assert all(one == two for one, two in memory)
        assert all(one != two for one, two in ports)
        assert bool(ports) == (topology.num_ranks == 16)


@pytest.mark.parametrize("trees", [2, 5])
def test_forests_of_several_trees(trees: int) -> None:
    check(plan_of(preset("dgx-a100", boxes=2), Collective.ALL_REDUCE, trees))


def test_two_mi250_boxes() -> None:
    assert check(plan_of(preset("mi250", boxes=2), Collective.ALL_REDUCE)).most_blocks <= 64


def doubling(ranks: int, collective: Collective) -> Schedule:
    """Ranks exchange everything they have with the rank 1, 2, 4, .. away, in steps; sums in an all-reduce."""
    case = AlgorithmCase(topology=preset("star", gpus=ranks), collective=collective)
    moves = Moves(case, blocks(case))
    distance, step = 1, 0
    while distance < ranks:
        for rank in range(ranks):
            held = (
                range(ranks)
                if collective is Collective.ALL_REDUCE
                else [block for block in range(ranks) if block // distance == rank // distance]
            )
            op = Op.REDUCE if collective is Collective.ALL_REDUCE else Op.COPY
            moves.add(step, rank, rank ^ distance, list(held), op)
        distance, step = 2 * distance, step + 1
    return moves.schedule()


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE])
def test_exchanges_in_steps(collective: Collective) -> None:
    schedule = doubling(8, collective)
    assert verify_schedule(schedule).ok
    program = one_sided_for(schedule)
    again = one_sided_to_schedule(program, schedule.topology)
    assert verify_schedule(again).ok
    assert traffic(again) == traffic(schedule)
    assert again.step.max() == (2 if collective is Collective.ALL_REDUCE else -1)


@pytest.mark.parametrize("make", SAMPLES)
def test_samples_of_others_are_schedules(make: Any) -> None:
    program = program_of(parse_document(text(make()), file="p.json")).program
    schedule = one_sided_to_schedule(program, preset("star", gpus=2))
    assert verify_schedule(schedule).ok


def test_instances() -> None:
    plan = plan_of(preset("star", gpus=4), Collective.ALL_REDUCE)
    one, four = check(plan), check(plan, instances=4)
    assert four.num_chunks == 4 * one.num_chunks
    assert four.most_blocks == 4 * one.most_blocks
    boxes = plan_of(preset("dgx-a100", boxes=2), Collective.ALL_GATHER)
    assert check(boxes, instances=2).most_blocks == 2 * check(boxes).most_blocks


def test_fewer_thread_blocks_have_more_to_do() -> None:
    plan = plan_of(preset("dgx-a100", boxes=2), Collective.ALL_GATHER)
    wide, narrow = check(plan), check(plan, blocks=2)
    assert narrow.most_blocks == 2 < wide.most_blocks
    assert narrow.most_operations > wide.most_operations


def test_the_same_plan_gives_the_same_bytes() -> None:
    plan = plan_of(preset("dgx-a100", boxes=2), Collective.ALL_REDUCE)
    assert mscclpp_json(one_sided_for(plan.body)) == mscclpp_json(one_sided_for(plan.body))


def test_one_rank() -> None:
    program = check(plan_of(subset(preset("star", gpus=2), [0]), Collective.ALL_GATHER), in_place=False)
    assert [op.name for op in program.blocks[0].operations] == ["copy"]
    assert [
        op.name for op in check(plan_of(program_topology(), Collective.ALL_REDUCE)).blocks[0].operations
    ] == ["nop"]


def program_topology() -> Topology:
    return subset(preset("star", gpus=2), [0])


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE, Collective.BARRIER])
def test_collectives_that_the_executor_cannot_run(collective: Collective) -> None:
    schedule = doubling(4, Collective.ALL_REDUCE)
    object.__setattr__(schedule, "collective", collective)
    with pytest.raises(InputError, match=r"they divide by the chunks of every rank's input and output"):
        one_sided_for(schedule)


def test_forms_that_cannot_be() -> None:
    plan = plan_of(preset("star", gpus=3), Collective.ALL_TO_ALL)
    with pytest.raises(InputError, match="expected an all-to-all out of place"):
        one_sided_for(plan.body, MscclppOptions(in_place=True))
    with pytest.raises(InputError, match="expected 1 instance or more, found 0"):
        one_sided_for(plan.body, MscclppOptions(instances=0))
    for form, told in (
        ({"blocks": 0}, "expected 1 thread block"),
        ({"threads": 100}, "a multiple of 32 threads"),
    ):
        with pytest.raises(InputError, match=told):
            MscclppOptions(**form)


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_does() -> None:
    """An all-to-all of 40 ranks at a switch: with two thread blocks each has 20 peers of 16."""
    plan = plan_of(preset("star", gpus=40), Collective.ALL_TO_ALL)
    with pytest.raises(CheckError) as caught:
        one_sided_for(plan.body, MscclppOptions(blocks=1))
    message = str(caught.value)
    assert "with 1 thread block a GPU" in message
    assert "where 64 are allowed" in message or "where 16 are allowed" in message
    fits = int(message.split("it fits with ")[1].split()[0])
    program = one_sided_for(plan.body, MscclppOptions(blocks=fits))
    assert not block_excesses(program)
    with pytest.raises(CheckError, match=r"does not fit the MSCCL\+\+ executor: \d+"):
        mscclpp_json(lower_one_sided(plan.body).program(1))


def test_sizes_that_do_not_fit_into_32_bits() -> None:
    plan = plan_of(preset("star", gpus=4), Collective.ALL_REDUCE)
    program = one_sided_for(plan.body)
    largest = largest_message(program)
    assert largest < 2**32
    assert largest % size_unit(program) == 0
    written = json.loads(mscclpp_json(one_sided_for(plan.body, MscclppOptions(max_bytes=2**40))))
    assert written["max_message_size"] == largest
    with pytest.raises(CheckError, match="it takes messages up to"):
        one_sided_for(plan.body, MscclppOptions(min_bytes=2**33))


def test_what_is_not_written() -> None:
    program = program_of(parse_document(text(SAMPLES[1]()), file="p.json")).program
    with pytest.raises(InputError, match=r"expected operations that are written \(nop, put, .* found ppkt"):
        mscclpp_json(program)
    assert mscclpp_json(program_of(parse_document(text(pair()), file="p.json")).program)


def test_commands(tmp_path: Path) -> None:
    plan, file, back = tmp_path / "plan.json", tmp_path / "p.mscclpp.json", tmp_path / "back.json"
    write_plan(plan_of(preset("dgx-a100", boxes=2), Collective.ALL_GATHER), plan)
    options = ("--size", "1M:1G", "--name", "gather", "--option", "threads=512", "--option", "blocks=8")
    code, out, notes = run("export", plan, "--to", "mscclpp-json", *options, "-o", file)
    assert (code, out) == (0, "")
    assert "a GPU needs 8 thread blocks, with" in notes
    written = json.loads(file.read_text())
    keys = ("name", "collective", "min_message_size", "max_message_size", "num_threads_per_block")
    assert [written[key] for key in keys] == ["gather", "allgather", 2**20, 2**30, 512]
    code, out, _ = run("doctor", file, "--target", "mscclpp", "--num-ranks", "16", "--size", "512K:2G")
    assert code == 1
    assert "512K: NOT used: min_message_size is 1048576" in out
    assert "1M..1G: used" in out
    assert run("doctor", file, "--target", "mscclpp", "--size", "1M:1G", "--json")[0] == 0
    code, out, _ = run("verify", file)
    assert code == 0
    assert "all_gather of 16 ranks (gather): verified" in out
    code, out, _ = run("import", file, "--topology", "dgx-a100", "--boxes", "2", "-o", back)
    assert code == 0
    assert "no deadlock" in out
    assert traffic(read_plan(back).body) == traffic(read_plan(plan).body)
    written["gpus"][3]["threadblocks"][0]["ops"].pop(0)
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(written))
    code, out, error = run("verify", wrong, "--json")
    assert code == 1
    assert json.loads(out)["verified"] is False
    assert "the program does not verify: it deadlocks" in error
    assert run("import", wrong, "-o", back)[0] == 1
    written["gpus"][3]["threadblocks"][0]["ops"] = [{"name": "glre"}]
    wrong.write_text(json.dumps(written))
    code, out, error = run("doctor", wrong, "--target", "mscclpp")
    assert code == 1
    assert "error    O01" in out
    assert "cannot use" in error
    assert run("verify", wrong)[0] == 2
    assert json.loads(run("export", plan, "--to", "mscclpp-json")[1])["max_message_size"] > 2**31
    for arguments, words in (
        (("--size", "1M"), "expected `--size LOW:HIGH`"),
        (("--size", "1G:1M"), "expected `--size` to rise"),
        (("--in-place", "--out-of-place"), "leave one of the two"),
        (("--option", "sms=4"), "no option 'sms': use one of blocks, threads"),
        (("--option", "threads=x"), "expected threads to be a whole number"),
        (("--target", "rccl"), "--target"),
    ):
        code, _, error = run("export", plan, "--to", "mscclpp-json", *arguments)
        assert code == 2
        assert words in error
    code, _, error = run("import", file, "--root", "0")
    assert code == 2
    assert "`--root` is for MSCCL XML" in error


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "runtimes.md").read_text()
    section = page[page.index("## MSCCL++ execution plans") :]
    shown = section.split("```text\n")[1].split("```")[0]
    plan, file = tmp_path / "plan.json", tmp_path / "p.json"
    write_plan(plan_of(preset("dgx-a100", boxes=2), Collective.ALL_REDUCE), plan)
    for arguments in (("export", plan, "--to", "mscclpp-json", "-o", file), ("verify", file)):
        answer = run(*arguments)
        assert answer.status == 0
    assert answer.out == shown
    for line in section.split("```python\n")[1].split("```")[0].splitlines():
        _, module, _, names = line.split(" ", 3)
        assert all(hasattr(importlib.import_module(module), name) for name in names.split(", "))
