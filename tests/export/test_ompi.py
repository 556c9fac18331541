"""Open MPI's rules files: an independent reader finds the fastest algorithm that Open MPI has at every size."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from coppice.bounds.problem import Problem
from coppice.cli.export import export
from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError
from coppice.export.formats import OMPI_FORMS, Exported, OmpiRulesOptions
from coppice.export.open_mpi.rules_file import installed_version, version_of
from coppice.export.open_mpi.writer import OmpiRule, export_ompi_rules, rules_file, rules_of
from coppice.fitting.open_mpi import OmpiChoice, choices_of, compared
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.selection import select, tables_of
from coppice.selection.tables import FUNCTIONS
from coppice.topology.presets import preset
from export import ompi_reader as reader
from run.engines.mpi.launching import HOME, reason_to_skip, run_mpi
from support.alpha_beta import simulate

SIZES = (64, 4096, 262144, 16777216)
VERSIONS = {"classic": (5, 0), "json": (6, 0)}
READ = {"classic": reader.classic, "json": reader.modern}


@pytest.mark.parametrize("ranks", [6, 8])
@pytest.mark.parametrize("collective", FUNCTIONS)
def test_choices_are_what_the_simulator_says(collective: Collective, ranks: int) -> None:
    """Each chosen id, run as Open MPI's table describes it, takes the stated time, and none of the others less."""
    topology = preset("star", gpus=ranks)
    problem = Problem(topology=topology, collective=collective, root=0 if collective.rooted else None)
    function = FUNCTIONS[collective]
    entries = tables_of("open-mpi").functions[function].algorithms
    for choice in choices_of(compared(topology, collective, SIZES, jobs=1)):
        own = select(
            "open-mpi", collective, choice.size_bytes, topology=topology, function=function, variant="tuned"
        )
        if choice.id == 0:
            assert choice.default_us is not None
            algorithm, parameters = own.ours, dict(own.parameters)
        else:
            name, entry = next((n, e) for n, e in entries.items() if e.id == choice.id)
            assert name == choice.name
            algorithm, parameters = entry.ours, dict(entry.parameters)
            whole = choice.size_bytes // (ranks if collective is Collective.ALL_REDUCE else 1)
            if choice.segment_bytes:
                parameters["segments"] = -(-whole // choice.segment_bytes)
            if choice.fanout:
                parameters["fanout"] = choice.fanout
        assert algorithm is not None
        made = find(algorithm, collective)
        case = case_of(made, problem, parameters)
        assert made.refusal(case) is None
        time = simulate(made.build(case), choice.size_bytes).time_us
        assert time == pytest.approx(choice.time_us, rel=1e-3)
        if choice.default_us is not None and choice.id:
            assert choice.time_us < choice.default_us * 0.97 + 1e-9
        for entry in entries.values():
            if entry.ours is None or entry.becomes or any("=" in str(v) for v in entry.parameters.values()):
                continue
            rival = find(entry.ours, collective)
            other = case_of(rival, problem, entry.parameters)
            if rival.refusal(other) is None:
                assert choice.time_us <= simulate(rival.build(other), choice.size_bytes).time_us * 1.04


@pytest.mark.parametrize("form", OMPI_FORMS)
@pytest.mark.spread(2)
def test_file_is_read_back(form: str) -> None:
    topology = preset("star", gpus=6)
    made = export_ompi_rules(topology, OmpiRulesOptions(sizes=SIZES, form=form, jobs=1))
    rules = READ[form](made.text)
    assert set(rules) == {"allgather", "allreduce", "bcast", "reduce"}
    for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE):
        function = FUNCTIONS[collective]
        for choice in choices_of(compared(topology, collective, SIZES, jobs=1), VERSIONS[form]):
            rule = reader.picked(rules, function, 6, choice.size_bytes)
            assert rule is not None
            assert (rule.algorithm, rule.fanout, rule.segment) == (
                choice.id,
                choice.fanout,
                choice.segment_bytes,
            )
        for size in (0, 1, 2**40):
            assert reader.picked(rules, function, 6, size) is not None
        for other in (2, 5, 7, 1000):
            rule = reader.picked(rules, function, other, 4096)
            assert rule is None or rule.algorithm == 0
    assert any("measure before" in note for note in made.notes)


def chosen_from(ranks: int, collective: Collective, **row: object) -> OmpiChoice:
    """The choice at 1 MiB where the given row is by far the fastest."""
    found = compared(preset("star", gpus=ranks), collective, [1 << 20], jobs=1)
    fastest = replace(found.measurements[0], time_us=0.001, refusal=None, **row)  # type: ignore[arg-type]
    choices = choices_of(dataclasses.replace(found, measurements=(*found.measurements, fastest)))
    assert len(choices) == 1
    return choices[0]


def test_rules_that_fall_back_are_not_written() -> None:
    """On 6 ranks recursive doubling would run as another algorithm; on 8 it does not."""
    doubling = {"algorithm": "recursive-doubling", "parameters": {}}
    assert chosen_from(6, Collective.ALL_GATHER, **doubling).time_us > 0.001
    assert chosen_from(8, Collective.ALL_GATHER, **doubling).time_us == 0.001


def test_segments_and_fanouts() -> None:
    """Segments are parts of the message, for the ring of blocks; an algorithm that takes none is not given any."""
    ring = chosen_from(6, Collective.ALL_REDUCE, algorithm="segmented-ring", parameters={"segments": 4})
    assert (ring.id, ring.segment_bytes) == (5, -(-174763 // 4))
    whole = chosen_from(6, Collective.ALL_REDUCE, algorithm="segmented-ring", parameters={"segments": 1})
    assert whole.name != "segmented_ring"
    chain = chosen_from(6, Collective.BROADCAST, algorithm="chain", parameters={"segments": 8, "fanout": 2})
    assert (chain.id, chain.fanout, chain.segment_bytes) == (2, 2, 131072)
    many = chosen_from(6, Collective.REDUCE, algorithm="binomial", parameters={}, pieces=4)
    assert many.name != "binomial"
    moved = chosen_from(6, Collective.REDUCE, algorithm="binomial", parameters={}, order="topology")
    assert moved.name != "binomial"
    other = chosen_from(6, Collective.BROADCAST, algorithm="k-nomial", parameters={"radix": 3})
    assert other.name != "knomial"


def test_rules_of_choices() -> None:
    choices = [
        OmpiChoice(size_bytes=0, id=1),
        OmpiChoice(size_bytes=100, id=1),
        OmpiChoice(size_bytes=400, id=5, segment_bytes=64),
        OmpiChoice(size_bytes=1600, id=5, segment_bytes=128),
        OmpiChoice(size_bytes=6400, id=0),
    ]
    rules = rules_of(choices)
    assert [(rule.first_bytes, rule.id, rule.segment_bytes) for rule in rules] == [
        (0, 1, 0),
        (201, 5, 64),
        (801, 5, 128),
        (3201, 0, 0),
    ]


def test_rules_for_one_number_of_ranks() -> None:
    rules = [OmpiRule(first_bytes=0, id=1), OmpiRule(first_bytes=201, id=5, segment_bytes=64)]
    made = {Collective.REDUCE: {12: rules}, Collective.BROADCAST: {12: rules[:1]}}
    assert rules_file(made, comments=["made by  us,\nfor them"]).splitlines() == [
        "# made by us, for them",
        "2 # collectives",
        "7 # bcast",
        "3 # numbers of ranks",
        "0 # ranks and more",
        "1 # rule: as Open MPI decides",
        "0 0 0 0",
        "12 # ranks",
        "1 # rules: bytes, algorithm, fan-out, segment bytes",
        "0 1 0 0",
        "13 # ranks and more",
        "1 # rule: as Open MPI decides",
        "0 0 0 0",
        "11 # reduce",
        "3 # numbers of ranks",
        "0 # ranks and more",
        "1 # rule: as Open MPI decides",
        "0 0 0 0",
        "12 # ranks",
        "2 # rules: bytes, algorithm, fan-out, segment bytes",
        "0 1 0 0",
        "201 5 0 64",
        "13 # ranks and more",
        "1 # rule: as Open MPI decides",
        "0 0 0 0",
    ]
    assert json.loads(rules_file({Collective.REDUCE: {12: rules}}, version=(6, 0), comments=["lost"])) == {
        "rule_file_version": 3,
        "module": "tuned",
        "collectives": {
            "reduce": [
                {
                    "comm_size_min": 12,
                    "comm_size_max": 12,
                    "rules": [
                        {
                            "msg_size_min": 0,
                            "msg_size_max": 200,
                            "alg": 1,
                            "faninout": 0,
                            "seg_size": 0,
                            "reqs": 0,
                        },
                        {
                            "msg_size_min": 201,
                            "msg_size_max": "inf",
                            "alg": 5,
                            "faninout": 0,
                            "seg_size": 64,
                            "reqs": 0,
                        },
                    ],
                }
            ]
        },
    }


@pytest.mark.parametrize("form", OMPI_FORMS)
def test_rules_for_several_numbers_of_ranks(form: str) -> None:
    """Each number of ranks gets its own rules, whatever the order; all others are left to Open MPI."""
    numbers = {8: 4, 2: 1, 3: 2, 1000: 5, 4: 3}
    made = {
        ranks: [OmpiRule(first_bytes=0, id=0), OmpiRule(first_bytes=100, id=number)]
        for ranks, number in numbers.items()
    }
    read = READ[form](
        rules_file({Collective.BROADCAST: made, Collective.REDUCE: {1: made[8]}}, version=VERSIONS[form])
    )
    for ranks in (0, *range(1, 12), 999, 1000, 1001, 10**6):
        for size in (0, 99, 100, 2**40):
            rule = reader.picked(read, "bcast", ranks, size)
            assert (rule.algorithm if rule else 0) == (numbers.get(ranks, 0) if size >= 100 else 0)
            rule = reader.picked(read, "reduce", ranks, size)
            assert (rule.algorithm if rule else 0) == (4 if ranks == 1 and size >= 100 else 0)


def test_rules_that_cannot_be_written() -> None:
    for bad in (
        [],
        [OmpiRule(first_bytes=1, id=1)],
        [OmpiRule(first_bytes=0, id=1), OmpiRule(first_bytes=0, id=2)],
    ):
        with pytest.raises(InputError, match="reduce on 4 ranks from 0 bytes upwards"):
            rules_file({Collective.REDUCE: {2: [OmpiRule(first_bytes=0, id=1)], 4: bad}})
    for lists in ({}, {0: [OmpiRule(first_bytes=0, id=1)]}):
        with pytest.raises(InputError, match="for 1 rank or more"):
            rules_file({Collective.REDUCE: lists})
    with pytest.raises(InputError, match=r"out of all_gather.*found gather"):
        rules_file({Collective.GATHER: {4: [OmpiRule(first_bytes=0, id=1)]}})
    with pytest.raises(InputError, match="classic, json"):
        export_ompi_rules(preset("star", gpus=2), OmpiRulesOptions(form="yaml"))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.conf"
    options = ["collectives=broadcast,reduce_scatter", "sizes=1K,1M", "jobs=1"]
    export("star", to="ompi-rules", settings=["gpus=5"], options=options, output=path)
    assert set(reader.classic(path.read_text())) == {"bcast", "reduce_scatter_block"}
    assert "--mca coll_tuned_use_dynamic_rules 1" in capsys.readouterr().err
    with pytest.raises(InputError, match="collectives out of all_gather"):
        export("star", to="ompi-rules", settings=["gpus=5"], options=["collectives=barrier"])
    with pytest.raises(InputError, match="2 ranks, a collective"):
        export("star", to="ompi-rules", settings=["gpus=1"])


def launcher(folder: Path, words: str) -> None:
    """A command `mpirun` that says its version."""
    file = folder / "mpirun"
    file.write_text(f"#!/bin/sh\necho '{words}'\n")
    file.chmod(0o755)


def test_the_installed_version_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed_version() is None
    assert (version_of(None), version_of(None, "json")) == ((5, 0), (6, 0))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    launcher(tmp_path, "HYDRA build details: Version: 5.0.2")
    assert installed_version() is None
    launcher(tmp_path, "mpirun (Open MPI) 5.0.11")
    assert (version_of(None), version_of(None, "json"), version_of("4.1.6")) == (
        (5, 0, 11),
        (6, 0),
        (4, 1, 6),
    )
    launcher(tmp_path, "mpirun (Open MPI) 6.0.0a1")
    assert (version_of(None), version_of(None, "classic"), version_of("5.0.9rc1")) == (
        (6, 0, 0),
        (5, 0),
        (5, 0, 9),
    )
    for text, form, words in (
        ("5", None, "such as 5.0.11"),
        ("5.0.11", "json", "reads rules as classic"),
        ("6.0", "classic", "reads rules as json"),
    ):
        with pytest.raises(InputError, match=words):
            version_of(text, form)


@pytest.mark.parametrize("version", ["4.1.6", "5.0.11", "6.0.0"])
@pytest.mark.parametrize("ranks", [5, 8])
@pytest.mark.spread(2)
def test_only_algorithms_of_the_version_are_named(version: str, ranks: int) -> None:
    """The simulator likes some of 6.0 best, which calls of 5.0 refuse; the doctor finds what its version lacks."""
    topology = preset("star", gpus=ranks)
    made = export_ompi_rules(topology, OmpiRulesOptions(sizes=SIZES, version=version, jobs=1))
    assert made.suffix == (".json" if version == "6.0.0" else ".conf")
    found = diagnose(made.text.encode(), made.read_as, options=made.known)
    assert found.ok, found.lines()
    assert made.known["version"] == version


def test_the_doctor_is_asked_before_rules_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with an error is not written."""
    path = tmp_path / "rules.conf"
    wrong = Exported(text="1\n2\n1\n4\n1\n0 7 0 0\n", read_as="ompi-rules", known={"version": "5.0.11"})
    monkeypatch.setattr("coppice.export.registry.export", lambda *_, **__: wrong)
    with pytest.raises(CheckError, match="allreduce has no algorithm 7"):
        export("star", to="ompi-rules", settings=["gpus=4"], output=path)
    assert not path.exists()


_CALLS = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
for size in map(int, sys.argv[1:]):
    share = max(1, size // world.size)
    one, all = bytearray(size), bytearray(share * world.size)
    world.Allreduce([bytes(size), MPI.BYTE], [one, MPI.BYTE], MPI.BOR)
    world.Allgather([bytes(share), MPI.BYTE], [all, MPI.BYTE])
    world.Bcast([one, MPI.BYTE])
    world.Reduce([bytes(size), MPI.BYTE], [one, MPI.BYTE] if world.rank == 0 else None, MPI.BOR)
"""


@pytest.mark.skipif(reason_to_skip("open-mpi") is not None, reason=str(reason_to_skip("open-mpi")))
@pytest.mark.parametrize("ranks", [4])
def test_the_installed_open_mpi_runs_what_the_rules_say(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{HOME / 'open-mpi' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("OPAL_PREFIX", str(HOME / "open-mpi"))
    made = export_ompi_rules(preset("star", gpus=ranks), OmpiRulesOptions(sizes=SIZES, jobs=1))
    path, script = tmp_path / "rules.conf", tmp_path / "calls.py"
    made.write(path)
    script.write_text(_CALLS)
    done = run_mpi(
        "open-mpi",
        ranks,
        [str(script), *map(str, SIZES)],
        variables={
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(path),
            "OMPI_MCA_coll": "^han",
        },
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert any(
        reader.picked(reader.classic(made.text), function, ranks, size).algorithm
        for function in ("allgather", "allreduce", "bcast", "reduce")
        for size in SIZES
    ), "rules that leave everything to Open MPI prove nothing"
