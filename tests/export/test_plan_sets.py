"""Exports of sets of plans: a file for each range, whose sizes follow each other, and which verify when read again."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

import coppice
from coppice.doctor import diagnose
from coppice.errors import InputError
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.reader import judge_document
from coppice.export.put_signal.document import parse_put_signal
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.schedule.files.set_file import PlanSet
from coppice.topology.presets import preset
from export.ompi_reader import classic, picked
from support.plan_sets import made_set

SIZES = ("below 1K", "1K to below 2K", "from 2K on")


@pytest.fixture(scope="module")
def plans() -> PlanSet:
    return made_set("ring", "recursive-doubling", "forest")


@pytest.mark.parametrize("target", ["rccl", "azure-executor", "msccl"])
def test_xml_files_are_for_sizes_that_follow_each_other(target: str, plans: PlanSet, tmp_path: Path) -> None:
    made = coppice.export(plans, "msccl-xml", tmp_path / "xml", target=target)
    files = sorted((tmp_path / "xml").iterdir())
    assert [each.name for each in files] == ["1-ring.xml", "2-recursive-doubling.xml", "3-forest.xml"]
    ends = []
    for file, part in zip(files, made.parts.values(), strict=True):
        data = file.read_bytes()
        assert data == part.text.encode()
        judged = judge_document(parse_document(data, file=file.name), target=target)
        assert judged.report.ok
        assert diagnose(data, part.read_as, options=part.known, file=file.name).ok
        assert coppice.verify(coppice.import_plan(file, topology=plans.topology)).ok
        ends.append((judged.program.min_bytes, judged.program.max_bytes))
    assert ends[0][0] == 0
    assert all(other[0] == (one[1] or 0) + 1 for one, other in pairwise(ends))
    assert any(SIZES[1] in note for note in made.notes)


def test_execution_plans_have_their_sizes(plans: PlanSet, tmp_path: Path) -> None:
    coppice.export(plans, "mscclpp-json", tmp_path / "plans")
    found = [json.loads(each.read_text()) for each in sorted((tmp_path / "plans").iterdir())]
    assert [each["min_message_size"] for each in found] == [0, 1024, 2048]
    assert [each["max_message_size"] for each in found[:2]] == [1023, 2047]


def test_programs_of_puts_and_signals_have_their_sizes(plans: PlanSet, tmp_path: Path) -> None:
    made = coppice.export(plans, "put-signal", tmp_path / "programs")
    ends = []
    for file in sorted((tmp_path / "programs").iterdir()):
        found = parse_put_signal(file.read_bytes(), file=file.name)
        assert verify_put_signal(found.program).ok
        ends.append((found.provenance["first_bytes"], found.provenance["last_bytes"]))
    assert ends == [(0, 1023), (1024, 2047), (2048, None)]
    assert made.summary == "3 files, one for each range of sizes,"
    scripts = coppice.export(plans, "python")
    assert [re.sub(r"^\d-", "", name) for name in scripts.files] == [
        "ring.py",
        "recursive-doubling.py",
        "forest.py",
    ]


def test_rules_name_the_algorithms_that_open_mpi_has(plans: PlanSet) -> None:
    made = coppice.export(plans, "ompi-rules", version="5.0")
    rules = classic(made.text)
    found = [picked(rules, "allreduce", 4, size) for size in (0, 1023, 1024, 2047, 2048, 2**30)]
    # Ring, recursive doubling, and what Open MPI decides by itself.
    assert [0 if each is None else each.algorithm for each in found] == [4, 4, 3, 3, 0, 0]
    assert made.notes[2].startswith("from 2K on: Open MPI has no forest as it is planned here")
    with pytest.raises(InputError, match="found none of 1 in the set"):
        coppice.export(made_set("forest"), "ompi-rules")
    with pytest.raises(InputError, match="leave out the options of rules but"):
        coppice.export(plans, "ompi-rules", sizes="1K")


def test_what_is_made_of_one_plan_takes_a_size(plans: PlanSet, tmp_path: Path) -> None:
    coppice.export(plans, "chakra", tmp_path / "traces", size="1K")
    assert len(list((tmp_path / "traces").iterdir())) == 4
    assert coppice.export(plans, "rank-order").text
    for name, options, message in (
        ("chakra", {}, "or give `size`"),
        ("cuda", {}, "found a set of 3: name one of its files"),
        ("rccl-trees", {}, "found a set of 3: name one of its files"),
        ("msccl-xml", {"target": "rccl", "size": "1M:1G"}, "found `size` as well"),
    ):
        with pytest.raises(InputError, match=message):
            coppice.export(plans, name, **options)


def test_xml_files_are_parted_where_the_protocol_changes(tmp_path: Path) -> None:
    plans = coppice.plan_set(preset("dgx-a100"), "all_gather", sizes="1K:256M:16", effort="quick")
    used = [row.protocol for row in plans.sizes]
    assert {"ll", "simple"} <= set(used)
    coppice.export(plans, "msccl-xml", tmp_path / "xml", target="rccl")
    programs = [
        judge_document(parse_document(each.read_bytes(), file=each.name), target="rccl").program
        for each in sorted((tmp_path / "xml").iterdir())
    ]
    assert all(two.min_bytes == (one.max_bytes or 0) + 1 for one, two in pairwise(programs))
    for row in plans.sizes:
        (own,) = [
            each
            for each in programs
            if each.min_bytes <= row.size_bytes
            and (each.max_bytes is None or row.size_bytes <= each.max_bytes)
        ]
        assert own.protocol == ("LL" if row.protocol == "ll" else "Simple")
    alike = coppice.export(plans, "msccl-xml", target="rccl", protocol="Simple")
    assert len(alike.parts) == len(plans.ranges)
