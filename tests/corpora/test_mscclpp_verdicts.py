"""Execution plans that MSCCL++ ships with its tests: what verifier, interpreter and doctor make of each.

Set COPPICE_CORPORA to a directory in which a clone of the repository lies, under any name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coppice.doctor import diagnose
from coppice.export.mscclpp.reader import read_mscclpp
from coppice.program.one_sided.to_schedule import one_sided_to_schedule
from coppice.program.one_sided.verify import verify_one_sided
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from reference.one_sided_run import run_plan

CORPORA = os.environ.get("COPPICE_CORPORA")
pytestmark = [
    pytest.mark.corpora,
    pytest.mark.skipif(
        not CORPORA,
        reason="published files not given: set COPPICE_CORPORA to a directory with clones of collections",
    ),
]

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
def test_verdicts(name: str) -> None:
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
