"""`coppice.export.export`: sources, options as values and as text, files that are whole, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export import FORMATS, export
from coppice.planners.planning import plan as make
from coppice.schedule.files.plan_file import write_plan
from coppice.schedule.plan import Plan
from coppice.topology.presets import preset


@pytest.fixture(scope="module")
def plan() -> Plan:
    problem = Problem(topology=preset("dgx-a100"), collective=Collective.ALL_GATHER)
    return make(problem, trees=1).plan


def test_a_plan_what_has_one_and_its_file_are_the_same(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.json")
    sources = (plan, SimpleNamespace(plan=plan), tmp_path / "plan.json", str(tmp_path / "plan.json"))
    texts = {export(source, "msccl-xml", target="rccl", size="1M:4M").text for source in sources}
    assert len(texts) == 1
    (text,) = texts
    made = export(plan, "msccl-xml", tmp_path / "a.xml", target="rccl", size=[2**20, 2**22])
    assert made.text == text == (tmp_path / "a.xml").read_text()
    again = export(tmp_path / "a.xml", "msccl-xml", target="msccl")
    assert "microsoft/msccl" in again.notes[0]
    with pytest.raises(InputError, match="leave out `channels`"):
        export(tmp_path / "a.xml", "msccl-xml", target="msccl", channels=2)


def test_an_option_has_its_earlier_name_too(plan: Plan) -> None:
    assert export(plan, "put-signal", lanes="2").text == export(plan, "put-signal", communicators=2).text


def test_a_plan_stands_for_its_topology(plan: Plan) -> None:
    made = export(plan, "rank-order", launcher="mpich")
    assert made == export(
        plan.topology, "rank-order", launcher="mpich", cores="1", whole_hosts="yes", names=None
    )
    assert made.suffix == ".txt"
    with pytest.raises(InputError, match="rccl-trees is made of a plan, found Topology"):
        export(plan.topology, "rccl-trees")
    with pytest.raises(InputError, match="chakra is made of a plan, found int"):
        export(3, "chakra")


def test_folders(plan: Plan, tmp_path: Path) -> None:
    made = export(plan, "chakra", tmp_path / "traces", size="1M")
    assert made.text == ""
    assert sorted(made.files) == sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert made.summary.startswith("8 traces with ")
    assert b"".join(made.files["trace.0.et"]()) == (tmp_path / "traces" / "trace.0.et").read_bytes()
    with pytest.raises(InputError, match=r"one message size: give it \(`size=64M`\)"):
        export(plan, "chakra")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chakrra", {}, "there is no export 'chakrra'"),
        ("chakra", {"sizes": "1M"}, "chakra has no option 'sizes'"),
        ("chakra", {"size": -1}, "expected size in bytes"),
        ("chakra", {"size": "big"}, "expected `size` to be bytes"),
        ("chakra", {"size": 1, "name": 3}, "expected name to be text, found 3"),
        ("rank-order", {"launcher": "pbs"}, "expected launcher to be one of json, hosts, slurm"),
        ("rank-order", {"cores": "x"}, "expected cores to be a whole number"),
        ("rank-order", {"cores": True}, "expected cores to be a whole number"),
        ("rank-order", {"whole_hosts": "maybe"}, "expected whole_hosts to be yes or no"),
        ("rank-order", {"names": 3}, "expected names to be names, found 3"),
        ("nccl-tuner", {"sizes": 1.5}, "expected sizes to be sizes in bytes"),
        ("nccl-tuner", {"sizes": ["1K"]}, "expected sizes in bytes"),
        ("nccl-tuner", {"times": 3}, "expected times to be the name of a file"),
        ("msccl-xml", {}, "expected `target` for MSCCL XML"),
        ("msccl-xml", {"target": "nccl"}, "expected a target of MSCCL XML"),
        ("msccl-xml", {"target": "rccl", "trees": "0"}, "expected `trees` to be a number of 1 or more"),
        ("msccl-xml", {"target": "rccl", "size": []}, "expected `size` of 1 byte or more"),
        ("mscclpp-json", {"size": "1M"}, "expected `size=LOW:HIGH`"),
    ],
)
def test_what_is_refused(plan: Plan, tmp_path: Path, name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        export(plan, name, tmp_path / "file", **options)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_every_format_says_what_it_is() -> None:
    for chosen in FORMATS.values():
        assert chosen.summary.endswith(".")
        assert all(option.help for option in chosen.options.values())
