"""MSCCL XML: what is written reads back the same, limits are kept, and broken files are refused with their line."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import coppice.export.msccl.writer
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError
from coppice.export import export
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.program import MscclOptions, program_for
from coppice.export.msccl.reader import MscclReading, program_of, read_msccl_xml
from coppice.export.msccl.rows import excesses
from coppice.export.msccl.targets import TARGETS, target_named
from coppice.export.msccl.writer import encode_msccl_xml, msccl_xml
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import Buffer
from coppice.topology.presets import preset
from reference.programs import built
from reference.programs_mutants import mutant
from reference.programs_samples import SAMPLES
from reference.programs_xml import lines_of
from support.msccl_samples import GATHER_XML, all_pairs, gather, ring_all_reduce


def read(text: str, root: int | None = None) -> MscclReading:
    return program_of(parse_document(text.encode(), file="a.xml"), root=root)


def assert_same(one: Program, two: Program) -> None:
    """Every column, and all that both say about themselves but their names."""
    for name in Program.__dataclass_fields__:
        if name != "name":
            assert np.array_equal(getattr(one, name), getattr(two, name)), name


PROGRAMS = {
    "gather": (gather(4), TARGETS),
    "gather out of place": (gather(4, in_place=False), TARGETS),
    "all pairs": (all_pairs(4), TARGETS),
    "ring": (ring_all_reduce(5), ("msccl", "azure-executor")),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_round_trip(name: str, target: str) -> None:
    program, targets = PROGRAMS[name]
    if target not in targets:
        with pytest.raises(CheckError, match="fused steps"):
            msccl_xml(program, target=target)
        return
    text = msccl_xml(program, target=target)
    reading = read(text)
    assert reading.warnings == ()
    again = msccl_xml(reading.program, target=target)
    assert again == text
    assert verify_program(reading.program).ok
    assert reading.program.collective is program.collective
    # Waits for several steps become nops; all else stays as it was.
    if not (np.diff(program.dep_start) > 1).any():
        assert_same(reading.program, program)


def test_several_waits_of_a_step_stand_in_nops_before_it() -> None:
    text = msccl_xml(all_pairs(4), target="rccl")
    adder = text.split('<tb id="3"')[1].split("</tb>")[0]
    assert [line.split()[2] for line in adder.splitlines()[1:6]] == ['type="nop"'] * 2 + ['type="re"'] * 3
    # The sum is ready at position 4, two nops included.
    assert 'depid="3" deps="4"' in text.split('<tb id="0"')[1].split("</tb>")[0]


def test_a_wait_for_a_nop_is_a_wait_for_the_step_after_it() -> None:
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank, send=1 - rank, recv=1 - rank)
        build.step(block, StepOp.SEND, src=(Buffer.OUTPUT, rank))
        build.step(block, StepOp.RECV, dst=(Buffer.SCRATCH, 0))
        other = build.block(rank)
        build.step(other, StepOp.NOP, after=[(0, 1)])
        build.step(other, StepOp.COPY, src=(Buffer.SCRATCH, 0), dst=(Buffer.OUTPUT, 1 - rank))
        third = build.block(rank)
        build.step(third, StepOp.COPY, src=(Buffer.OUTPUT, rank), dst=(Buffer.SCRATCH, 1), after=[(1, 0)])
    program = built(build, Collective.ALL_GATHER, 2, 2, inputs=1, scratch=2)
    again = read(msccl_xml(program, target="rccl")).program
    assert not (again.op == StepOp.NOP).any()
    assert (again.dep_block.tolist(), again.dep_step.tolist()) == ([0, 1] * 2, [1, 0] * 2)
    assert verify_program(again).ok


def test_the_same_program_gives_the_same_bytes() -> None:
    assert msccl_xml(all_pairs(5), target="rccl") == msccl_xml(all_pairs(5), target="rccl")


@pytest.mark.parametrize(
    ("target", "name", "largest"),
    [("rccl", "allreduce", 0), ("azure-executor", "allreduce", 0), ("msccl", "allreduce", 2**32 + 1)],
)
def test_attributes(target: str, name: str, largest: int) -> None:
    algo = parse_document(msccl_xml(all_pairs(3), target=target).encode(), file="a.xml").algo
    assert algo["coll"] == name
    assert algo["maxBytes"] == str(largest)
    assert set(TARGETS[target].required) <= set(algo)
    assert algo["name"] == "all-pairs"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("largest", [None, 1024])
def test_the_largest_message_is_read_back(target: str, largest: int | None) -> None:
    text = msccl_xml(replace(all_pairs(3), max_bytes=largest), target=target)
    stated = int(parse_document(text.encode(), file="a.xml").algo["maxBytes"])
    assert TARGETS[target].largest_of(stated) == (2**32 if (target, largest) == ("msccl", None) else largest)
    assert read(text).program.max_bytes == largest


def test_names_of_reduce_scatter() -> None:
    assert target_named("msccl").collectives[Collective.REDUCE_SCATTER] == "reduce_scatter"
    assert target_named("rccl").collectives[Collective.REDUCE_SCATTER] == "reducescatter"
    for target in TARGETS.values():
        text = GATHER_XML.replace('"allgather"', f'"{target.collectives[Collective.REDUCE_SCATTER]}"')
        assert read(text).program.collective is Collective.REDUCE_SCATTER


def test_a_file_says_for_which_versions_it_is() -> None:
    for target in TARGETS.values():
        first = msccl_xml(gather(2), target=target.name).splitlines()[0]
        assert first.startswith("<!-- Coppice ")
        assert target.versions in first


def sums_into_one_slot(counts: list[int]) -> Program:
    """Two ranks whose thread block adds scratch slots to one slot."""
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank)
        for place, count in enumerate(counts):
            build.step(block, StepOp.REDUCE, src=(Buffer.SCRATCH, place), dst=(Buffer.INPUT, 0), count=count)
    return built(build, Collective.ALL_REDUCE, 2, 2, scratch=40)


@pytest.mark.parametrize(
    ("counts", "ends"), [([1] * 16, []), ([1] * 17, [15]), ([1] * 40, [15, 31]), ([1, 1, 2, 1], [1, 2])]
)
def test_runs_of_reductions_that_must_not_be_joined_are_broken(counts: list[int], ends: list[int]) -> None:
    document = parse_document(msccl_xml(sums_into_one_slot(counts), target="rccl").encode(), file="a.xml")
    flags = document.step["hasdep"][: len(counts)].tolist()
    assert [place for place, flag in enumerate(flags) if flag] == ends


def many_blocks(number: int, *, steps: int = 1, channels: int = 1) -> Program:
    build = ProgramBuilder(2)
    for rank in range(2):
        for place in range(number):
            block = build.block(rank, channel=place % channels)
            for _ in range(steps):
                build.step(block, StepOp.COPY, src=(Buffer.INPUT, 0), dst=(Buffer.SCRATCH, 0))
    return built(build, Collective.ALL_REDUCE, 2, 100, scratch=40000)


@pytest.mark.parametrize(
    ("target", "fits", "too_much", "words"),
    [
        ("rccl", many_blocks(64), many_blocks(67), "67 thread blocks where 64 are allowed, 3 too many"),
        ("msccl", many_blocks(216), many_blocks(217), "217 thread blocks where 216 are allowed"),
        ("rccl", many_blocks(1, steps=64), many_blocks(1, steps=70), "70 steps in a thread block where 64"),
        (
            "msccl",
            many_blocks(1, steps=256),
            many_blocks(1, steps=257),
            "257 steps in a thread block where 256",
        ),
        (
            "msccl",
            many_blocks(32, channels=32),
            many_blocks(33, channels=33),
            "33 channels where 32 are allowed",
        ),
        ("azure-executor", gather(33), gather(35), "34 thread blocks that send on one channel where 32"),
        ("msccl", many_blocks(16, steps=250), many_blocks(17, steps=250), "4,270 elements that a rank reads"),
    ],
)
def test_limits(target: str, fits: Program, too_much: Program, words: str) -> None:
    assert msccl_xml(fits, target=target)
    with pytest.raises(CheckError, match=words):
        msccl_xml(too_much, target=target)
    assert all(each.found > each.allowed and each.advice for each in excesses(too_much, target=target))


def test_counts_and_offsets_have_limits() -> None:
    def copying(count: int, offset: int) -> Program:
        build = ProgramBuilder(2)
        block = build.block(0)
        build.step(block, StepOp.COPY, src=(Buffer.INPUT, 0), dst=(Buffer.SCRATCH, offset), count=count)
        return built(build, Collective.ALL_REDUCE, 2, 100, scratch=40000)

    assert msccl_xml(copying(71, 32_767), target="rccl")
    with pytest.raises(CheckError, match="72 slots in one step where 71 are allowed"):
        msccl_xml(copying(72, 0), target="rccl")
    with pytest.raises(CheckError, match="32,768 as the highest slot where 32,767"):
        msccl_xml(copying(1, 32_768), target="rccl")


def test_what_a_target_does_not_run_is_refused() -> None:
    build = ProgramBuilder(1)
    program = built(build, Collective.BARRIER, 1, 1, inputs=0, outputs=0, out_of_place=True)
    with pytest.raises(InputError, match="expected a collective that RCCL runs"):
        msccl_xml(program, target="rccl")
    with pytest.raises(InputError, match="expected a target"):
        msccl_xml(gather(2), target="nccl")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    made = export(gather(3), "msccl-xml", path, target="rccl")
    assert_same(read_msccl_xml(path).program, gather(3))
    assert made.text == msccl_xml(gather(3), target="rccl") == path.read_text()
    with pytest.raises(CheckError):
        export(many_blocks(70), "msccl-xml", path, target="rccl")
    assert_same(read_msccl_xml(path).program, gather(3))
    assert [each.name for each in tmp_path.iterdir()] == ["a.xml"]
    with pytest.raises(InputError, match=r"cannot read .*name an existing file"):
        read_msccl_xml(tmp_path / "b.xml")


def test_what_published_files_contain_is_read() -> None:
    text = (
        '<?xml version="1.0"?>\n<!-- x -->\n'
        + GATHER_XML.replace(' outofplace="0" minBytes="0" maxBytes="0"', ' redop="nop" nthreadblocks="1"')
        + "Rank 0 chunk 0 is incorrect\n"
    )
    reading = read(text)
    assert (reading.program.in_place, reading.program.out_of_place) == (True, False)
    assert (reading.program.min_bytes, reading.program.max_bytes) == (0, None)
    assert len(reading.warnings) == 1
    assert "after </algo>" in reading.warnings[0]
    neither = read(GATHER_XML.replace(' inplace="1" outofplace="0"', ""))
    assert (neither.program.in_place, neither.program.out_of_place) == (False, True)
    assert "neither inplace nor outofplace" in neither.warnings[0]


def test_gpus_and_thread_blocks_in_any_order() -> None:
    text = msccl_xml(all_pairs(3), target="rccl")
    head, *gpus = text.split("  <gpu")
    gpus[-1] = gpus[-1].replace("</algo>\n", "")
    turned = head + "".join(f"  <gpu{each}" for each in reversed(gpus)) + "</algo>\n"
    assert_same(read(turned).program, read(text).program)
    first, second, rest = text.split("    <tb id=", 3)[1], text.split("    <tb id=", 3)[2], None
    assert rest is None
    swapped = text.replace(
        f"    <tb id={first}    <tb id={second}", f"    <tb id={second}    <tb id={first}", 1
    )
    assert swapped != text
    assert_same(read(swapped).program, read(text).program)


def test_a_nop_without_a_dependency_does_not_count() -> None:
    text = msccl_xml(all_pairs(3), target="rccl")
    lines = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '<tb id="2"' in line) + 1
    idle = lines[at].replace('depid="0" deps="1"', 'depid="-1" deps="-1"')
    assert idle != lines[at]
    reading = read("".join([*lines[:at], idle, *lines[at:]]))
    assert_same(reading.program, read(text).program)
    assert f"a.xml:{at + 1}: a nop without a dependency" in reading.warnings[0]


def test_a_wait_ends_with_the_next_step_that_tells() -> None:
    text = msccl_xml(all_pairs(3), target="rccl")
    assert 'depid="2" deps="2"' in text
    earlier = text.replace('depid="2" deps="2"', 'depid="2" deps="1"')
    reading = read(earlier)
    assert_same(reading.program, read(text).program)
    assert "lacks hasdep=1: the wait ends with step 2 of thread block 2" in reading.warnings[0]


BROKEN = [
    (' proto="Simple"', ' proto="simple"', 2, "expected proto to be Simple, LL or LL128, found 'simple'"),
    (' coll="allgather"', ' coll="custom"', 2, "expected coll to be one of"),
    (' coll="allgather"', "", 2, "expected an attribute coll on <algo>"),
    (' ngpus="2"', ' ngpus="0"', 2, "expected ngpus as an integer 1"),
    (' ngpus="2"', ' ngpus="3"', 2, "expected 3 GPUs, found 2: gpu 2 is missing"),
    (' ngpus="2"', ' ngpus="1"', 9, "expected a gpu id below ngpus = 1, found 1"),
    ('gpu id="1"', 'gpu id="0"', 9, "gpu 0 stands in line 3 already"),
    ('inplace="1"', 'inplace="0"', 2, "expected inplace or outofplace to be 1"),
    ('inplace="1"', 'inplace="yes"', 2, "expected inplace to be 0 or 1"),
    ('minBytes="0"', 'minBytes="x"', 2, "expected minBytes as bytes"),
    ('tb id="0"', 'tb id="1"', 4, "expected thread blocks 0, 1, 2, ... of gpu 0"),
    ('chan="0"', 'chan="-1"', 4, "expected chan of 0 or more"),
    (' chan="0"', "", 4, "expected an attribute chan on <tb>, found none"),
    ('type="s"', 'type="x"', 5, "expected type to be one of"),
    ('type="s"', 'type="ra"', 5, "steps of type ra"),
    ('cnt="1"', 'cnt="0"', 5, "expected cnt of 1 or more, found 0"),
    ('srcoff="0"', 'srcoff="1e3"', 5, "expected srcoff as an integer on <step>, found '1e3'"),
    ('srcoff="0"', f'srcoff="{10**12}"', 5, "expected srcoff as an integer"),
    ('depid="-1" deps="-1"', 'depid="0" deps="1"', 5, "the wait would never end"),
    ("<tb id", "<step/><tb id", 4, "expected <step> inside <tb>"),
    ("</gpu>", "</gpus>", 8, "is not well-formed XML"),
    ("<algo", "<!DOCTYPE x><algo", 2, "defines a document type"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), BROKEN)
def test_broken_files_are_refused_with_their_line(old: str, new: str, line: int, words: str) -> None:
    lines = GATHER_XML.splitlines()
    assert old in GATHER_XML
    # The text of the sample begins with a comment, and <algo> stands on one line after it.
    assert lines[1].startswith("<algo")
    with pytest.raises(InputError) as caught:
        read(GATHER_XML.replace(old, new, 1))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"a.xml:{line}")


def test_roots() -> None:
    build = ProgramBuilder(3)
    for rank in (1, 2):
        build.step(build.block(0, send=rank), StepOp.SEND, src=(Buffer.INPUT, 0))
        build.step(build.block(rank, recv=0), StepOp.RECV, dst=(Buffer.OUTPUT, 0))
    program = built(build, Collective.BROADCAST, 3, 1, root=0)
    text = msccl_xml(program, target="rccl")
    assert read(text).program.root == 0
    bare = text.replace(' root="0"', "")
    assert read(bare).program.root == 0
    assert read(bare, root=2).program.root == 2
    with pytest.raises(InputError, match="expected a root below 3, found 3"):
        read(bare, root=3)
    with pytest.raises(InputError, match=r"the root of the reduce is not to be seen \(2 ranks could be it\)"):
        read(bare.replace('"broadcast"', '"reduce"'))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GATHER_XML.encode())))
    assert read_msccl_xml("-").program.num_ranks == 2


@pytest.mark.parametrize("target", ["rccl", "azure-executor"])
@pytest.mark.parametrize("collective", [Collective.GATHER, Collective.SCATTER])
def test_loaders_count_gather_and_scatter_by_the_share_of_a_rank(collective: Collective, target: str) -> None:
    problem = Problem(topology=preset("ring", gpus=4), collective=collective, root=0)
    program = program_for(plan(problem).plan.body, target, MscclOptions(min_bytes=1024, max_bytes=4096))
    text = msccl_xml(program, target=target)
    document = parse_document(text.encode(), file="a.xml")
    own, other = ("i_chunks", "o_chunks") if collective is Collective.GATHER else ("o_chunks", "i_chunks")
    # a slot has the bytes of one rank's share / nchunksperloop
    assert [int(document.algo[key]) for key in ("nchunksperloop", "minBytes", "maxBytes")] == [
        document.gpu[own][0],
        256,
        1024,
    ]
    assert document.gpu[other][0] == 4 * document.gpu[own][0]
    again = read(text).program
    assert (again.num_chunks, again.min_bytes, again.max_bytes) == (program.num_chunks, 1024, 4096)
    assert verify_program(again).ok
    found = diagnose(text.encode(), target, ranks=4, sizes=(1024, 4096, 512, 8192, 1026))
    assert found.loads
    assert [reason is None for _, reason in found.sizes] == [True, True, False, False, False]
    whole = document.algo["nchunksperloop"]
    wrong = text.replace(f'nchunksperloop="{whole}"', f'nchunksperloop="{4 * int(whole)}"')
    assert [each.rule for each in diagnose(wrong.encode(), target).findings if each.severity == "error"][
        :1
    ] == ["A12"]
    assert not verify_program(read(wrong).program).ok


def below_the_head(program: Program, target: str) -> str:
    text = b"".join(encode_msccl_xml(program, TARGETS[target])).decode()
    head, algo, rest = text.split("\n", 2)
    assert head.startswith("<!--")
    assert algo.startswith("<algo ")
    return rest


def assert_same_text(program: Program, target: str) -> bool:
    """Both write the same, or refuse in the same words."""
    if program.collective not in TARGETS[target].collectives:
        return False
    found = [
        told(lambda: "".join(lines_of(program, TARGETS[target]))),
        told(lambda: below_the_head(program, target)),
    ]
    assert found[0] == found[1]
    return not found[0].startswith("refused")


def told(write: Callable[[], str]) -> str:
    """The text, or the words of the refusal."""
    try:
        return write()
    except InputError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("target", TARGETS)
def test_samples(target: str) -> None:
    assert sum(assert_same_text(program, target) for program in SAMPLES) > 100


@pytest.mark.parametrize("seed", range(3))
def test_programs_of_random_operations(seed: int) -> None:
    """Reductions that follow each other, steps that do nothing, and waits for those."""
    numbers, rng = np.random.default_rng(seed), random.Random(seed)
    written = 0
    for program in SAMPLES[seed::3]:
        op = program.op.copy()
        op[numbers.random(len(op)) < 0.5] = StepOp.REDUCE
        op[numbers.random(len(op)) < 0.05] = StepOp.NOP
        changed = replace(
            program,
            op=op,
            dst_buffer=np.ones_like(program.dst_buffer),
            src_buffer=np.zeros_like(program.src_buffer),
            dst_offset=numbers.integers(0, 2, len(op)).astype(np.int32),
            count=numbers.integers(1, 3, len(op)).astype(np.int32),
        )
        changed = mutant(changed, "drop_step", rng) or changed
        written += assert_same_text(changed, "azure-executor")
    assert written > 20


def test_pieces_and_tables_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coppice.export.msccl.writer, "_PIECE", 5)
    monkeypatch.setattr(coppice.export.msccl.writer, "_MANY", 3)
    assert sum(assert_same_text(program, "rccl") for program in SAMPLES[::7]) > 20
