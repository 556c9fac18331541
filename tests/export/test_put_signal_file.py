"""The file of a put/signal program: written, read back, refused where it is wrong, and known to the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from cli.conftest import Run, run
from coppice.errors import InputError
from coppice.export.put_signal.document import is_put_signal, parse_put_signal, put_signal_json
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset
from support.put_signal_cases import small_programs, text_of, tree_of

__all__ = ["run"]

Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("program", small_programs()[:8], ids=lambda program: program.name)
def test_what_is_read_is_what_was_written(program: PutSignalProgram) -> None:
    text = put_signal_json(program)
    assert is_put_signal(text.encode())
    again = parse_put_signal(text.encode(), file="again").program
    assert put_signal_json(again) == text
    for key in ("rank_start", "call_start", "stream", "communicator", "act", "peer", "count"):
        assert np.array_equal(getattr(again, key), getattr(program, key))


def call(tree: dict[str, Any]) -> dict[str, Any]:
    """The first call with a put."""
    return next(
        call for calls in tree["calls"] for call in calls if call.get("transfer", [[""]])[0][0] == "put"
    )


WRONG: dict[str, tuple[Change, str]] = {
    "version": (lambda tree: tree.update(version=2), r"\$\.version: expected 1"),
    "collective": (lambda tree: tree.update(collective="all"), r"\$\.collective: expected one of all_gather"),
    "ranks": (lambda tree: tree.update(ranks=0), r"\$\.ranks: expected a number of ranks, found 0"),
    "too few": (
        lambda tree: tree["calls"].pop(),
        r"\$\.calls: expected 2 members, one for each rank, found 1",
    ),
    "setup": (
        lambda tree: tree["setup"].update(speed=True),
        r"\$\.setup\.speed: expected true or false for one of",
    ),
    "staging slots": (lambda tree: tree.update(staging=1), r"expected a list of the slots of staging memory"),
    "staging": (lambda tree: tree["staging"].insert(0, -1), r"\$\.staging: expected 2 members"),
    "stream": (
        lambda tree: call(tree).update(stream="a"),
        r"\$\.calls\[0\]\[\d\]\.stream: expected a stream, found 'a'",
    ),
    "member": (lambda tree: call(tree).update(more=1), r"expected a stream, and a transfer or wait"),
    "empty": (lambda tree: call(tree).update(transfer=[]), r"transfer: expected one operation or more"),
    "operation": (
        lambda tree: call(tree)["transfer"][0].pop(),
        r"transfer\[0\]: expected an operation \(put, signal",
    ),
    "buffer": (
        lambda tree: call(tree)["transfer"][0].__setitem__(2, "scratch"),
        r"expected a buffer \(input, output, staging\), found 'scratch'",
    ),
    "list for a buffer": (
        lambda tree: call(tree)["transfer"][0].__setitem__(2, ["input"]),
        r"expected a buffer \(input, output, staging\), found \['input'\]",
    ),
    "number": (
        lambda tree: call(tree)["transfer"][0].__setitem__(3, 1.5),
        r"expected a whole number for the source, found 1\.5",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_with_the_place(name: str) -> None:
    change, words = WRONG[name]
    tree = tree_of(small_programs()[0])
    change(tree)
    with pytest.raises(InputError, match=words):
        parse_put_signal(text_of(tree), file="wrong")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    write_plan(coppice.plan(preset("ring", gpus=4), "all_reduce").plan, path)
    return path


def test_the_commands_export_verify_and_diagnose(plan_file: Path, tmp_path: Path, run: Run) -> None:
    made = tmp_path / "plan.psp.json"
    done = run("export", plan_file, "--to", "put-signal", "--option", "pieces=4", "-o", made)
    assert done.code == 0
    assert "puts and signals on 1 communicator" in done.err
    found = run("verify", made, "--json")
    assert found.code == 0
    assert found.json["verified"] is found.json["in_place"] is found.json["graph_safe"] is True
    assert "schedules" not in found.json["checked"]
    assert "messages" in run("verify", made).out
    runs = run("verify", made, "--schedules", "22", "--json").json["checked"]
    assert runs["schedules"] == 2 * 22
    assert runs["actions"] % runs["schedules"] == 0
    assert "44 schedules" in run("verify", made, "--schedules", "22").out
    judged = run(
        "doctor",
        made,
        "--target",
        "nccl",
        "--option",
        "version=2.30.7",
        "--option",
        "max_connections=1",
        "--json",
    )
    assert judged.code == 0
    findings: Any = judged.json["findings"]
    assert [each["rule"] for each in findings] == ["D01", "V06"]
    assert run("doctor", made, "--target", "nccl", "--fact", "version=2.28").code == 1


def test_a_program_that_overwrites_does_not_verify(plan_file: Path, tmp_path: Path, run: Run) -> None:
    made = tmp_path / "plan.psp.json"
    assert run("export", plan_file, "--to", "put-signal", "-o", made).code == 0
    tree = json.loads(made.read_text())
    call(tree)["transfer"][0][1] = (call(tree)["transfer"][0][1] + 1) % 4
    made.write_text(json.dumps(tree))
    found = run("verify", made, "--json")
    assert found.code == 1
    assert found.json["verified"] is False
    assert "expected the same number" in str(found.json["failures"])


HUGE: dict[str, tuple[Change, str]] = {
    "chunks": (lambda tree: tree.update(chunks=2 * 10**12), "expected memory of 4294967296 chunks at most"),
    "staging": (lambda tree: tree.update(staging=[10**13, 0]), "on all ranks, found 100000000000"),
    "stream": (
        lambda tree: call(tree).update(stream=10**12),
        "stream 1000000000000: expected one below 1024",
    ),
    "communicator": (
        lambda tree: call(tree).update(communicator=2**52),
        "communicator 4503599627370496: expected",
    ),
    "context": (lambda tree: call(tree)["transfer"][0].__setitem__(-1, 2**52), "context 4503599627370496"),
}


@pytest.mark.parametrize("name", HUGE)
def test_numbers_beyond_all_memory_fail_at_once(name: str, tmp_path: Path, run: Run) -> None:
    change, words = HUGE[name]
    tree = tree_of(small_programs()[0])
    change(tree)
    file = tmp_path / "huge.psp.json"
    file.write_bytes(text_of(tree))
    found = run("verify", file)
    assert found.code == 1
    assert words in found.err


def test_members_in_another_order_are_the_same_file(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "sorted.psp.json"
    file.write_text(json.dumps(tree_of(small_programs()[0]), sort_keys=True, indent=1))
    assert ": verified" in run("verify", file).out


def test_schedules_are_for_programs_of_puts(plan_file: Path, run: Run) -> None:
    found = run("verify", plan_file, "--schedules", "3")
    assert found.code == 2
    assert "expected a program of puts and signals for `--schedules 3`" in found.err


def test_what_is_asked_of_nccl_is_not_asked_of_others(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "algo.xml"
    file.write_text("<algo></algo>")
    found = run("doctor", file, "--target", "rccl", "--fact", "version=2.30")
    assert found.code == 2
    assert "`--fact` is for tuning files and nccl" in found.err


def test_the_doctor_is_told_a_thing_once(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "made.psp.json"
    file.write_bytes(text_of(tree_of(small_programs()[0])))
    found = run("doctor", file, "--target", "nccl", "--fact", "version=2.30", "--fact", "version=2.29.2")
    assert found.code == 2
    assert "--fact gives version twice ('2.30' and '2.29.2'): keep one" in found.err


def test_sums_of_switches_are_no_puts() -> None:
    box = preset("dgx-h100", fabric="switch", multicast=True, aggregate=True)
    made = coppice.plan(box, "all_reduce", in_network=True)
    with pytest.raises(InputError, match="between ranks; plan without `in_network`"):
        coppice.export(made, "put-signal")


def test_staging_is_given_in_per_cent() -> None:
    made = coppice.plan(preset("ring", gpus=4), "all_reduce")
    text = coppice.export(made, "put-signal", staging=0).text
    assert parse_put_signal(text.encode(), file="made").program.staging.max() > 0
    with pytest.raises(InputError, match="expected `staging` in per cent"):
        coppice.export(made, "put-signal", staging=2000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"communicators": 0}, "expected `communicators` from 1 to 1024, found 0"),
        ({"groups": 0}, "expected `groups` from 1 to 1024, found 0"),
        ({"size": 0}, "expected `size` of 1 byte or more, found 0"),
        ({"staging": "-1"}, "expected staging to be a whole number"),
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    made = coppice.plan(preset("star", gpus=3), "all_gather")
    with pytest.raises(InputError, match=words):
        coppice.export(made, "put-signal", **options)


def test_notes_name_the_version_that_takes_more_than_one_signal() -> None:
    made = coppice.plan(preset("dgx-a100", boxes=2), "all_gather")
    first, more = (coppice.export(made, "put-signal", signals=signals).notes[0] for signals in (1, 4))
    assert first.startswith("for NCCL 2.29.2 or later")
    assert more.startswith("for NCCL 2.31.2 or later")
