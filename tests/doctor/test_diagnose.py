"""The front of the doctor: what it takes, what it refuses, and what a diagnosis can be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coppice.doctor import TARGETS, JobFacts, Severity, diagnose, rules_for
from coppice.doctor.framework import ERROR, NOTE, Need, Rulebook, Subject, run
from coppice.errors import InputError
from export.tuning_samples import GRAPH, TOPOLOGY
from support.msccl_samples import GATHER_XML
from support.mscclpp_samples import pair, text

TOLD = [
    (text(pair()), "mscclpp"),
    (GRAPH, "nccl-graph"),
    (TOPOLOGY, "nccl-topo"),
    ("NCCL_RINGS=0 1 2 3|3 2 1 0\n", "rccl-rings"),
    ("export RCCL_TREES=(0(1)(2))\n", "rccl-trees"),
    ("# mine\nMPIR_CVAR_BCAST_INTRA_ALGORITHM=auto\n", "mpich-env"),
]


@pytest.mark.parametrize(("content", "target"), TOLD, ids=[target for _, target in TOLD])
def test_the_content_tells_the_target(content: str | bytes, target: str) -> None:
    assert diagnose(content) == diagnose(content, target)
    assert diagnose(content).target == target


@pytest.mark.parametrize(
    ("content", "words"),
    [(GATHER_XML, "rccl, azure-executor, msccl"), ("1\n2\n", "rccl, .*, mpich-env, host")],
)
def test_what_does_not_tell_needs_a_target(content: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"the file does not tell who is to read it: .*one of {words}\.$"):
        diagnose(content)


def test_a_file_its_text_and_its_bytes_are_one(tmp_path: Path) -> None:
    path = tmp_path / "algo.xml"
    path.write_text(GATHER_XML)
    found = [
        diagnose(source, "rccl", file="x") for source in (path, str(path), GATHER_XML, GATHER_XML.encode())
    ]
    assert all(each == found[0] for each in found)
    assert diagnose(path, "rccl").file == str(path)
    assert diagnose(path, "rccl", sizes="1K:4K") == diagnose(path, "rccl", sizes=[1024, 2048, 4096])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "ncll-tuner"}, "did you mean 'nccl-tuner'"),
        ({"target": 3}, "expected `target` of diagnose to be a str or None, found 3"),
        ({"ranks": 0}, "expected `ranks` as a number of 1 or more, found 0"),
        ({"ranks": "8"}, "found '8'"),
        ({"ranks": True}, "found True"),
        ({"sizes": "1X"}, "expected `sizes` to be bytes such as"),
        ({"sizes": [1.5]}, r"expected `sizes` of diagnose to be .* ints, found \[1.5\]"),
        ({"sizes": [-1]}, "expected sizes of 0 bytes or more"),
        ({"sizes": 4}, "expected `sizes` of diagnose to be .* ints, found 4"),
        ({"options": {"gpus": "2"}}, "is for tuning files"),
        ({"target": "nccl-graph", "ranks": 2}, "is for MSCCL XML"),
        ({"target": "nccl-graph", "sizes": (8,)}, "is for files that choose by size"),
        ({"target": "nccl-tuner", "sizes": (8,)}, "communicators of the job: name them by `options`"),
        ({"target": "nccl-graph", "options": {"gpu": "2"}}, "did you mean 'gpus'"),
        ({"source": 7}, "expected `source` of diagnose to be a str, a bytes or a PathLike, found 7"),
    ],
)
def test_arguments_that_are_none(arguments: dict[str, Any], words: str) -> None:
    given = {"source": GATHER_XML, "target": "rccl", **arguments}
    with pytest.raises(InputError, match=words):
        diagnose(**given)


@pytest.mark.parametrize("target", TARGETS)
def test_rules_of_targets(target: str) -> None:
    ids = [rule.id for rule in rules_for(target)]
    assert ids == sorted(set(ids))
    with pytest.raises(InputError, match="no target"):
        rules_for(f"{target}-")


def test_a_diagnosis_is_short_to_show_and_whole_as_a_record() -> None:
    found = diagnose(GATHER_XML.replace('"Simple"', '"simple"'), "rccl", file="x" * 999, sizes=(8, 9))
    assert len(repr(found)) < 400
    assert "for RCCL: not ok, 1 errors" in repr(found)
    record = json.loads(json.dumps(found.record()))
    assert [each["rule"] for each in record["findings"]] == [each.rule for each in found.findings]
    assert [each["used"] for each in record["sizes"]] == [False, False]
    assert record["sizes"][0]["reason"] == "the file does not work as it stands (A05)"
    assert [each.strip() for each in found.lines() if "used" in each.lower()][-2:] == [
        "8: NOT used: the file does not work as it stands (A05)",
        "9: NOT used: it is no multiple of 2 chunks x 4 bytes",
    ]
    good = diagnose(GATHER_XML, "rccl", sizes=(8, 9))
    assert good.sizes[0] == (8, None)
    graph = diagnose(GRAPH, "nccl-graph", options=JobFacts(gpus=2))
    assert graph.ok
    assert set(graph.record()["undecided"]) == {"G06", "G07"}
    assert graph.lines()[0] == "the file as nccl-graph: no errors"


def test_rules_are_declared_once_and_complaints_may_have_their_own_severity() -> None:
    table = Rulebook[Subject]()
    missing = Need("a thing", lambda _: False)
    table.rule("Q02", ERROR, "two", "because")(lambda _: iter([(2, "bad", "mend"), (NOTE, 1, "odd", "look")]))
    table.rule("Q01", ERROR, "one", "because", needs=missing)(lambda _: iter([(1, "bad", "mend")]))
    with pytest.raises(ValueError, match="two rules Q01"):
        table.rule("Q01", ERROR, "one", "because")(lambda _: iter(()))
    found = run(Subject(file="f"), table, target="t", heading="as t")
    assert [(each.line, each.severity) for each in found.findings] == [
        (2, Severity.ERROR),
        (1, Severity.NOTE),
    ]
    assert [tuple(each) for each in found.undecided] == [("Q01", "one", "a thing")]
    assert found.lines()[-2:] == ["  not decided:", "    Q01  one: give a thing"]
