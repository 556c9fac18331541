"""Published files: which are right, which are wrong and how, which need room; MSCCL XML and plans of MSCCL++."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import InputError
from coppice.export.msccl.reader import read_msccl_xml
from coppice.export.mscclpp.reader import read_mscclpp
from coppice.program.dialects.puts.to_schedule import one_sided_to_schedule
from coppice.program.dialects.puts.verify import verify_one_sided
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from reference.one_sided_run import run_plan
from reference.programs_run import run_program

CORPORA = os.environ.get("COPPICE_CORPORA")
pytestmark = [
    pytest.mark.corpora,
    pytest.mark.skipif(
        not CORPORA,
        reason="published files not given: set COPPICE_CORPORA to a directory with clones of collections",
    ),
]


@dataclass(frozen=True)
class Expected:
    """What is known of some files.

    Attributes:
        files: Pattern of their paths below the directory.
        number: How many there are.
        collective: What they implement.
        ranks: On how many ranks.
        depth: Least number of messages that connections must hold; 0 where the files are wrong with any.
        fault: How they are wrong: a regular expression that some failure matches.
        safe: By messages that a connection holds: bytes above which steps are cut in so many that it hangs.
    """

    files: str
    number: int
    collective: Collective
    ranks: int
    depth: int = 1
    fault: str = ""
    safe: Mapping[int, int] = field(default_factory=dict)


REDUCE, GATHER, EXCHANGE = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL
RCCL, AZURE = "tools/msccl-algorithms", "tools/msccl-algorithms/ndv[45]"
EXPECTED = [
    Expected(f"{RCCL}/allreduce-allpairs-8n-*.xml", 7, REDUCE, 8),
    Expected(f"{RCCL}/alltoall-8n-*.xml", 5, EXCHANGE, 8),
    Expected("tools/msccl-unit-test-algorithms/all-reduce-ring-*.xml", 3, REDUCE, 16, depth=2),
    Expected(f"{RCCL}/allgather_16n_direct_*_ll128*.xml", 2, GATHER, 16),
    Expected(f"{RCCL}/allgather_32n_direct_*_ll128*.xml", 2, GATHER, 32),
    Expected(f"{AZURE}/a2a*.xml", 4, EXCHANGE, 8),
    Expected(f"{AZURE}/ag-1[6km]*.xml", 6, GATHER, 8),
    Expected(f"{AZURE}/ag-[248]m.xml", 6, GATHER, 8),
    Expected(f"{AZURE}/ag-32m-1g.xml", 2, GATHER, 8, depth=2),
    Expected(f"{AZURE}/ap*.xml", 6, REDUCE, 8),
    Expected(f"{AZURE}/r48*.xml", 4, REDUCE, 8),
    Expected("tools/msccl-algorithms/ncv4/ag_hier_4_*.xml", 2, GATHER, 4),
    Expected("tools/msccl-algorithms/ncv4/ar_*.xml", 2, REDUCE, 4),
    Expected("MSCCL_examples/amd_32.xml", 1, GATHER, 32),
    Expected("a100_x1_allgather_in.xml", 1, GATHER, 8),
    Expected("a100_x1_allreduce_in.xml", 1, REDUCE, 8),
    Expected("a100_x2_allgather_in.xml", 1, GATHER, 16),
    Expected("a100_x2_allreduce_in.xml", 1, REDUCE, 16),
    Expected("mi250_x1_allgather_in.xml", 1, GATHER, 16),
    Expected("mi250_x1_allreduce_in.xml", 1, REDUCE, 16),
    Expected("mi250_x1_reduce_scatter_in.xml", 1, Collective.REDUCE_SCATTER, 16),
    Expected("mi250_x2_allgather_in.xml", 1, GATHER, 32),
    Expected("mi250_x2_allreduce_in.xml", 1, REDUCE, 32),
    Expected("mi250_x2_reduce_scatter_in.xml", 1, Collective.REDUCE_SCATTER, 32),
    Expected("a100_x1_allgather_out.xml", 1, GATHER, 8, depth=0, fault="reads slot 1 of the input, which has 1 there"),
    Expected("dgx1_allgather.xml", 1, GATHER, 8),
    Expected("allgather_ring_8_1_1.xml", 1, GATHER, 8, depth=2),
    Expected("allreduce_a100_allpairs_8_1.xml", 1, REDUCE, 8, safe={1: 1 << 17, 2: 1 << 18}),
    Expected("allreduce_a100_ring_8_8_1.xml", 1, REDUCE, 8),
    Expected("alltoall_a100_two_step_2_8.xml", 1, EXCHANGE, 16),
    Expected("hierarchical_allreduce_8_2_1.xml", 1, REDUCE, 16),
    Expected(
        "allreduce_a100_pcie_hierarchical_4_1.xml", 1, REDUCE, 4, depth=0,
        fault=r"adds the contribution of rank 1 to chunk \d+ a second time",
    ),
    Expected(
        "allreduce_a100_pcie_hierarchical_8_1.xml", 1, REDUCE, 8, depth=0,
        fault=r"adds the contribution of rank \d to chunk \d+ a second time",
    ),
    Expected(
        "pipeline_a100_allpairs_8_1.xml", 1, REDUCE, 16, depth=0,
        fault=r"slot 0 of the output of rank 0 ends with chunk 0 without the contribution of rank 8 \(8 missing\)",
    ),
]  # fmt: skip


def found(pattern: str) -> list[Path]:
    """Files of that pattern, each once, however many clones hold it."""
    paths = sorted(Path(str(CORPORA)).glob(f"**/{pattern}"))
    return list({path.parts[-3:]: path for path in paths}.values())


def ways(program: Program) -> list[bool]:
    return [way for way in (True, False) if (program.in_place if way else program.out_of_place)]


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda each: each.files)
def test_verdicts(expected: Expected) -> None:
    paths = found(expected.files)
    if not paths:
        pytest.skip(f"no files {expected.files} below COPPICE_CORPORA")
    assert len(paths) == expected.number
    for path in paths:
        program = read_msccl_xml(path).program
        assert (program.collective, program.num_ranks) == (expected.collective, expected.ranks), path
        for depth in (1, 2, 8):
            report = verify_program(program, depth=depth)
            safe = expected.safe.get(depth)
            assert report.safe_bytes == safe if safe else report.ok == (0 < expected.depth <= depth), report
            if not expected.depth and depth > 1:
                assert any(re.search(expected.fault, failure) for failure in report.failures), report.failures
            elif expected.depth and not report.ok and not safe:
                assert "it deadlocks with connections of 1 messages" in report.failures[0], path
            for way in ways(program):
                outcome = run_program(program, in_place=way, depth=depth, seed=depth)
                assert outcome.good == (report.ok or bool(safe)), (path, depth, way)


def test_two_faults_put_into_a_published_file() -> None:
    paths = found("dgx1_allgather.xml")
    if not paths:
        pytest.skip("no dgx1_allgather.xml below COPPICE_CORPORA")
    program = read_msccl_xml(paths[0]).program
    assert len(program.dep_block)
    free = replace(
        program,
        dep_start=np.zeros_like(program.dep_start),
        dep_block=program.dep_block[:0],
        dep_step=program.dep_step[:0],
    )
    assert any("nothing puts them in order" in failure for failure in verify_program(free).failures)
    moved = program.dst_offset.copy()
    row = int(np.flatnonzero(moved > 0)[0])
    moved[row] -= 1
    assert not verify_program(replace(program, dst_offset=moved)).ok


def test_text_after_the_end_is_told() -> None:
    paths = found("allreduce_a100_pcie_hierarchical_4_1.xml")
    if not paths:
        pytest.skip("no allreduce_a100_pcie_hierarchical_4_1.xml below COPPICE_CORPORA")
    warnings = read_msccl_xml(paths[0]).warnings
    last = len(paths[0].read_text().splitlines())
    (told,) = [warning for warning in warnings if "expected nothing after </algo>" in warning]
    assert 1 < int(told.removeprefix(f"{paths[0]}:").split(":")[0]) <= last


REFUSED: dict[str, tuple[Callable[[str], str], str]] = {
    "collective": (lambda text: re.sub('coll="[a-z_]+"', 'coll="allswap"', text), r":\d+: expected coll"),
    "type": (lambda text: text.replace('type="s"', 'type="z"', 1), r":\d+: .*type"),
    "no count": (lambda text: re.sub(' cnt="[0-9]+"', "", text, count=1), r":\d+: .*cnt"),
    "end": (lambda text: text[: len(text) // 2], r":\d+ is not well-formed"),
    "entity": (lambda text: f"<!DOCTYPE algo>{text}", r":\d+ defines a document type"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused_with_the_line(fault: str, tmp_path: Path) -> None:
    paths = [*found(f"{RCCL}/alltoall-8n-0-9kb.xml"), *found("dgx1_allgather.xml")]
    if not paths:
        pytest.skip("no files below COPPICE_CORPORA")
    injure, words = REFUSED[fault]
    for path in paths:
        wrong = tmp_path / "wrong.xml"
        wrong.write_text(injure(path.read_text()))
        with pytest.raises(InputError, match=words):
            read_msccl_xml(wrong)


RACES = "nothing puts them in order"
# File, what the verifier finds, rules of the doctor that are broken.
VERDICTS = {
    "execution-files/allreduce.json": ("", ()),
    "execution-files/allreduce_packet.json": ("", ()),
    "execution-files/allreduce_pipeline.json": ("", ("J07", "Z01")),  # no buffer_type, no output chunks
    "execution-plans/reduce.json": ("", ()),
    "execution-plans/reduce_nvls.json": ("", ()),
    "execution-plans/reduce_nvls_pipeline.json": ("", ()),
    "execution-plans/reduce_pack.json": ("", ()),
    "execution-plans/reduce_pack_tbg.json": ("", ()),
    # A thread block reads what another one of the peer copied, of which only that one's own signal tells.
    "execution-plans/reduce_tbg.json": (RACES, ()),
    "execution-plans/transfer_pack.json": ("", ()),
    "execution-plans/transfer_pack_tbg.json": ("", ()),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_of_execution_plans(name: str) -> None:
    paths = sorted(Path(str(CORPORA)).glob(f"**/{name}"))
    if not paths:
        pytest.skip(f"no file {name} below COPPICE_CORPORA")
    told, rules = VERDICTS[name]
    program = read_mscclpp(paths[0]).program
    report = verify_one_sided(program)
    assert report.ok == (not told)
    assert not told or any(told in failure for failure in report.failures)
    diagnosis = diagnose(paths[0], "mscclpp")
    assert {finding.rule for finding in diagnosis.findings if finding.severity == "error"} == set(rules)
    plan = json.loads(paths[0].read_text())
    outcomes = {run_plan(plan, seed, together=seed % 2 == 0) for seed in range(60)}
    assert outcomes == ({"right"} if report.ok else {"right", "wrong"})
    if report.ok:
        schedule = one_sided_to_schedule(program, preset("star", gpus=program.num_ranks))
        assert verify_schedule(schedule).ok
