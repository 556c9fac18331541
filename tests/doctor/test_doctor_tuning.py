"""The doctor of tuning files: for every rule a small file that trips it, and one that does not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coppice import Collective, Problem, plan
from coppice.cli.doctor import doctor as command
from coppice.doctor import TUNING_TARGETS, Diagnosis, JobFacts, Severity, diagnose, rules_for
from coppice.errors import CheckError, InputError
from coppice.export.formats import Dialect, NcclTopoXmlOptions, NcclTunerOptions, RcclTreesOptions
from coppice.export.nccl.topo_xml import export_nccl_topo_xml
from coppice.export.nccl.tuner import export_nccl_tuner
from coppice.export.rccl import export_rccl_trees
from coppice.logs.reading import parse_log
from coppice.topology.presets import preset
from export.tuning_samples import (
    ANYTHING,
    END,
    EXAMPLE,
    GRAPH,
    GRAPHS,
    LOG,
    NCCLX,
    RCCL,
    RINGS,
    TEXTS,
    TOPOLOGIES,
    TOPOLOGY,
    TREES,
    TUNER,
    WHOLE,
    filled,
    logged,
)
from support.shared_data import SHARED, needs_shared


def found(artefact: str, text: str, facts: JobFacts | None = None) -> Diagnosis:
    return diagnose(text.encode(), artefact, file="file", options=facts)


def broken(artefact: str, text: str, facts: JobFacts | None = None) -> str:
    """Rule, severity and line of every finding."""
    entries = [(each.rule, each.severity.value, each.line) for each in found(artefact, text, facts).findings]
    return ", ".join(f"{rule} {severity} {line}" for rule, severity, line in sorted(set(entries)))


@pytest.mark.parametrize(("name", "text", "facts", "expected"), TUNER, ids=[case[0] for case in TUNER])
def test_tuner_tables(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken("nccl-tuner", text.replace("{END}", str(END)), facts) == expected, name


def test_tuners_of_the_example() -> None:
    """The example plug-in reads the table; without it, or with another one, nobody does."""
    for line, expected in (
        ("Using Example (v4)", ""),
        ("Using nccl_ofi_tuner (v3)", "T15 error 0"),
        ("Could not find: libnccl-tuner.so", "T15 error 0"),
    ):
        log = parse_log(f"n:1:1 [0] NCCL INFO TUNER/Plugin: {line}\n".encode(), file="log")
        assert broken("nccl-tuner", ANYTHING, replace(EXAMPLE, log=log)) == expected


@pytest.mark.parametrize("dialect", Dialect)
def test_own_tables_are_clean(dialect: Dialect, tmp_path: Path) -> None:
    """What the exporter writes breaks no rule, and is known by its head; a changed line is noticed."""
    topology = preset("mi300x" if dialect is Dialect.RCCL_BUILTIN else "dgx-h100", boxes=2)
    times = tmp_path / "times.csv"
    times.write_text(
        "collective,nodes,ranks,size_bytes,algorithm,protocol,time_us\n"
        "allreduce,2,16,1024,tree,ll,9\nallreduce,2,16,1024,ring,ll128,5\nallreduce,2,16,1048576,ring,simple,60\n"
    )
    text = export_nccl_tuner(topology, NcclTunerOptions(dialect=dialect, times=times)).text
    facts = JobFacts(topology=topology)
    diagnosis = found("nccl-tuner", text, facts)
    assert {each.severity for each in diagnosis.findings} <= {Severity.NOTE}
    assert "T13" not in broken("nccl-tuner", text, facts)
    assert "T13 note" in broken("nccl-tuner", text.replace("allreduce", "broadcast", 1), facts)


@pytest.mark.parametrize(("name", "text", "facts", "expected"), GRAPHS, ids=[case[0] for case in GRAPHS])
def test_graphs(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken("nccl-graph", text, facts) == expected, name


@pytest.mark.parametrize(("name", "old", "new", "expected"), TEXTS, ids=[case[0] for case in TEXTS])
def test_texts(name: str, old: str, new: str, expected: str) -> None:
    text = GRAPH.replace(old, new) if name == "CRLF" else GRAPH.replace(old, new, 1)
    assert broken("nccl-graph", text) == expected, name


@pytest.mark.parametrize(
    ("name", "text", "facts", "expected"), TOPOLOGIES, ids=[case[0] for case in TOPOLOGIES]
)
def test_topologies(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken("nccl-topo", text, facts) == expected, name


@needs_shared
@pytest.mark.parametrize("name", ["rccl_topo_8p_940", "rccl_topo_16p1h", "perlmutter_a100_4x_nid001056"])
def test_real_topologies(name: str) -> None:
    """Dumps of real machines trip nothing but what is odd in them; a correction of one that it was made of, nothing."""
    path = SHARED / "topologies" / f"{name}.xml"
    diagnosis = diagnose(path.read_bytes(), "nccl-topo", file=name)
    assert diagnosis.ok
    correction = export_nccl_topo_xml(
        preset("mi300x", boxes=2), NcclTopoXmlOptions(base=path, rails=("none",))
    ).text
    after = diagnose(correction.encode(), "nccl-topo", file="new", options=JobFacts(dump=path.read_bytes()))
    assert {each.rule for each in after.findings} <= {"P05"}
    assert all("link_speed" in each.text for each in after.findings)


@pytest.mark.parametrize(("name", "text", "facts", "expected"), RINGS, ids=[case[0] for case in RINGS])
def test_rings(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken("rccl-rings", text, facts) == expected, name


@pytest.mark.parametrize(("name", "text", "facts", "expected"), TREES, ids=[case[0] for case in TREES])
def test_trees(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken("rccl-trees", text, facts) == expected, name


def test_own_trees_are_clean() -> None:
    topology = preset("mi300x")
    made = plan(Problem(topology=topology, collective=Collective.ALL_REDUCE), ring=False).plan
    assert (
        broken("rccl-trees", export_rccl_trees(made, RcclTreesOptions()).text, JobFacts(topology=topology))
        == ""
    )


def test_every_rule_has_a_file_that_breaks_it() -> None:
    cases = [*TUNER, *GRAPHS, *TOPOLOGIES, *RINGS, *TREES]
    seen = {entry.split()[0] for case in cases for entry in case[3].split(", ") if entry}
    artefacts = set(TUNING_TARGETS) - {"ompi-rules", "mpich-env", "host"}  # they have tests of their own
    everything = {rule.id for artefact in artefacts for rule in rules_for(artefact)}
    assert seen == everything
    assert len(everything) == 16 + 9 + 6 + 4


def test_what_cannot_be_decided_is_said() -> None:
    diagnosis = found("nccl-tuner", WHOLE.format(-1), RCCL)
    assert {each.rule for each in diagnosis.undecided} == {"T11", "T12", "T14", "T15"}
    assert found("nccl-tuner", WHOLE.format(-1), logged()).undecided == ()


@pytest.mark.parametrize(
    ("artefact", "text", "words"),
    [
        ("nccl-tuner", "# nothing\n", "file holds no line of a tuner table"),
        ("nccl-graph", "<system version='1'/>", "expected <graphs> at file:1"),
        ("nccl-graph", "<graphs", "not well-formed"),
        ("nccl-topo", "<graphs version='1'/>", "expected <system> at file:1"),
        ("rccl-rings", "PATH=/bin\n", "file does not set NCCL_RINGS"),
        ("nccl-tunes", "", "did you mean 'nccl-tuner'"),
    ],
)
def test_what_is_no_such_file(artefact: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        found(artefact, text)


def samples() -> Iterator[tuple[str, str, JobFacts]]:
    yield "nccl-tuner", ANYTHING, EXAMPLE
    yield "nccl-tuner", "allgather,[0,9),ring,ll,-1,2,8\nallgather,[9,),ring,simple,-1,(1,4],*\n", NCCLX
    yield "nccl-graph", GRAPH, JobFacts(dump=GRAPH.encode(), shapes=((2, 4),))
    yield "nccl-topo", TOPOLOGY, JobFacts(dump=TOPOLOGY.encode())
    yield "rccl-rings", "NCCL_RINGS=N0 0 1 2 3 N1|3 2 1 0\n", JobFacts(gpus=4)
    yield "rccl-trees", "RCCL_TREES=(0(1(3))(2))|(2(0)(3(1)))\n", JobFacts(gpus=4)


@pytest.mark.parametrize(("artefact", "text", "facts"), list(samples()))
def test_damaged_files(artefact: str, text: str, facts: JobFacts) -> None:
    rng = random.Random(3)
    judged = 0
    for _ in range(300):
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(data))
            change = rng.choice(
                (
                    b"",
                    b"9" * 22,
                    b"-",
                    b"(",
                    b")",
                    b"|",
                    b",",
                    b"\t",
                    b"\xff",
                    b"\n",
                    b'"',
                    b"N",
                    "\u0663".encode(),
                )
            )
            data[at : at + rng.randint(0, 2)] = change
        try:
            diagnose(bytes(data), artefact, file="x", options=facts)
        except InputError:
            continue
        judged += 1
    assert judged > 5


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, log = tmp_path / "table.csv", tmp_path / "nccl.log"
    table.write_text(f"allreduce,0,{END},ring,ll128,-1,2,16\n" + WHOLE.format(-1))
    log.write_text(LOG)
    command(str(table), target="nccl-tuner", options=["dialect=rccl-builtin", f"log={log}"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{table} as nccl-tuner (rccl-builtin): no errors"
    assert lines[1].startswith(f"  warning  T11  {table}:1: ring with ll128 has 0.0 GB/s")
    assert lines[2].startswith("                fix: remove the line")
    log.write_text(LOG + "n1:1:1 [0] NCCL INFO     AllReduce |    25.2/  11.3 |    48.5/\n")
    command(str(table), target="nccl-tuner", options=["dialect=rccl-builtin", f"log={log}"])
    assert "begins like a row of the cost model" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(CheckError, match="breaks rule T08 of nccl-tuner: a machine may lack"):
        command(
            str(table), target="nccl-tuner", as_json=True, options=["dialect=nvidia-example", "shapes=2x16"]
        ) if (
            table.write_text(f"allreduce,0,{END},nvls,simple,0,-1,-1\n" + ANYTHING.rpartition("allreduce")[0])
        ) else None
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert record["ok"] is False
    assert record["findings"][0]["rule"] == "T08"
    assert set(record["undecided"]) == {"T11", "T14", "T15", "T16"}
    for bad, words in (
        ({"options": ["shape=2x16"]}, "did you mean 'shapes'"),
        ({"options": ["shapes=16"]}, "NODESxRANKS"),
        ({"options": ["shapes=16x2"]}, "NODESxRANKS"),
        ({"options": ["dialect=x"]}, "expected dialect="),
        ({"options": ["version=x"]}, "version such as 2.27.7"),
        ({"options": ["channels=0"]}, "channels as a number of 1 or more"),
        ({"ranks": 3}, "is for MSCCL XML"),
    ):
        with pytest.raises(InputError, match=words):
            command(str(table), target="nccl-tuner", **bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is for tuning files"):
        command(str(table), target="rccl", options=["gpus=2"])


def test_what_is_given() -> None:
    facts = JobFacts.parse(
        {
            "topology": "mi300x",
            "boxes": "2",
            "version": "rccl-2.21.5",
            "nics": "a,b",
            "gpus": "8",
            "channels": "4",
        }
    )
    assert facts.known_shapes == {(2, 16)}
    assert (facts.rccl, facts.version, facts.most_channels, facts.nics) == (True, (2, 21, 5), 128, ("a", "b"))
    assert JobFacts.parse({"topology": "mi300x"}).gpus_of_host == 8


SUBSET = """\
#AR 4PPN
allreduce,1024,2048,ring,simple,16,2,8,-1,-1
allreduce,4096,8192,tree,ll,-1,2,8,-1,-1

#AR 1PPN
allreduce,1024,2048,ring,ll,4,8,8,-1,-1"""


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_sizes_tell_which_line_holds_for_the_job(ends: str) -> None:
    """Shapes that are equal by ranks are told apart by nodes; holes and ends are said; the last line needs no end."""
    text = SUBSET.replace("\n", ends)
    facts = replace(RCCL, shapes=((2, 8), (8, 8), (1, 8)))
    diagnosis = diagnose(text.encode(), "nccl-tuner", file="file", options=facts, sizes="1K:16K")
    assert diagnosis.lines()[0] == "file as nccl-tuner (rccl-builtin): no errors"
    nothing = ("no line: the library decides", 0)
    line_2, line_3, line_6 = (
        ("ring with simple, 16 channels", 2),
        ("tree with ll", 3),
        ("ring with ll, 4 channels", 6),
    )
    assert {call: [choice[1:] for choice in choices] for call, choices in diagnosis.coverage} == {
        "allreduce on 1 node with 8 ranks": [nothing] * 5,
        "allreduce on 2 nodes with 8 ranks": [line_2, line_2, line_3, line_3, nothing],
        "allreduce on 8 nodes with 8 ranks": [line_6, line_6, nothing, nothing, nothing],
    }
    assert "    1K..2K: ring with simple, 16 channels (line 2)" in diagnosis.lines()
    record = json.loads(json.dumps(diagnosis.record()))
    assert record["coverage"][1]["sizes"][0] == {
        "size_bytes": 1024,
        "choice": "ring with simple, 16 channels",
        "line": 2,
    }


def test_bytes_per_rank_are_counted_where_the_dialect_does() -> None:
    text = "allgather,[0,64),ring,ll,-1,2,8\nallgather,[64,),ring,simple,-1,2,8\n"
    found = diagnose(
        text.encode(), "nccl-tuner", options=replace(NCCLX, shapes=((2, 16),)), sizes=[1023, 1024]
    )
    assert [choice[2] for choice in found.coverage[0].choices] == [1, 2]


def test_an_assumed_dialect_is_said() -> None:
    assert (
        "nvidia-example, since nothing tells another" in found("nccl-tuner", ANYTHING, JobFacts()).lines()[0]
    )


def test_lines_of_the_job_are_shown_where_there_are_too_many() -> None:
    """Of fifty shapes with a finding each those of the job are not the ones that are left out."""
    text = "".join(f"allreduce,0,8,ring,simple,-1,{n},{8 * n}\n" for n in range(1, 51))
    diagnosis = found("nccl-tuner", text, replace(RCCL, shapes=((41, 328), (50, 400))))
    ends = [each.line for each in diagnosis.findings if each.rule == "T02"]
    assert len(ends) == 20
    assert {41, 50} <= set(ends)
    assert diagnosis.hidden["T02"] == 30


def test_hosts_need_no_preset() -> None:
    facts = JobFacts.parse({"boxes": "2", "gpus": "8"})
    assert facts.known_shapes == {(2, 16)}
    assert "256 elements" in " ".join(
        each.text for each in found("nccl-topo", filled(250), facts).findings if each.rule == "P04"
    )
