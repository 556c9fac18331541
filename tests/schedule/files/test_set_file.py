"""Folders of plan sets: what is written is read again, what was changed is refused, what is there stays whole."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coppice
from coppice.errors import CheckError, InputError
from coppice.files import replacing
from coppice.schedule.files import set_file
from coppice.schedule.files.set_file import PlanSet, is_plan_set, read_plan_set
from coppice.topology.presets import preset
from reference.plan_mutations import sealed
from support.plan_sets import made_set, ranges_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made_set("ring", "forest", "ring").save(tmp_path / "plans")
    return tmp_path / "plans"


def test_a_set_is_read_as_it_was_written(folder: Path) -> None:
    found = read_plan_set(folder)
    assert sorted(each.name for each in folder.iterdir()) == ["1-ring.json", "2-forest.json", "set.json"]
    assert [(each.first_bytes, each.last_bytes, each.file) for each in found.ranges] == [
        (0, 1023, "1-ring.json"),
        (1024, 2047, "2-forest.json"),
        (2048, None, "1-ring.json"),
    ]
    assert found.at("1K").planner == "forest"
    assert found.at(1023) is found.at("1G")
    assert read_plan_set(folder / "set.json").ranges[1].plan.planner == "forest"
    assert coppice.verify(folder).ok
    assert coppice.verify(found).checked == {"plans": 2, "ranges": 3, "sizes": 0}
    assert [is_plan_set(each) for each in (folder, folder / "set.json", folder / "1-ring.json")] == [
        True,
        True,
        False,
    ]


def test_a_set_replaces_another_and_leaves_other_files_alone(folder: Path) -> None:
    (folder / "algo.xml").write_text("<algo/>")
    made_set("recursive-doubling").save(folder)
    assert sorted(each.name for each in folder.iterdir()) == [
        "1-recursive-doubling.json",
        "algo.xml",
        "set.json",
    ]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"expected a new or empty folder .* found other files"):
        made_set("ring").save(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(InputError, match="name a folder"):
        made_set("ring").save(tmp_path / "notes.txt")


@pytest.mark.parametrize("there", [False, True])
def test_a_write_that_fails_leaves_no_half_of_a_set(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plans"
    if there:
        made_set("recursive-doubling").save(target)
    before = {each.name: each.read_bytes() for each in target.iterdir()} if there else None
    calls = 0

    def failing(path: str | os.PathLike[str]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise InputError("the disk is full.")
        return replacing(path)

    monkeypatch.setattr(set_file, "replacing", failing)
    with pytest.raises(InputError, match="the disk is full"):
        made_set("ring", "forest").save(target)
    assert (
        {each.name: each.read_bytes() for each in target.iterdir()} if target.exists() else None
    ) == before


def test_ctrl_c_while_a_set_is_written_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(path: str | os.PathLike[str]) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return replacing(path)

    monkeypatch.setattr(set_file, "replacing", pressed)
    with pytest.raises(KeyboardInterrupt):
        made_set("ring", "forest").save(tmp_path / "plans")
    left = tmp_path / "plans"
    assert read_plan_set(left).plans


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update({key: value})


def change_range(number: int, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["ranges"][number].update({key: value})


TIMED = {
    "size_bytes": 64,
    "simulated_seconds": 1.0,
    "fastest_seconds": 1.0,
    "fastest_name": "ring",
    "least_seconds": 0.5,
    "gap": 1.0,
}


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (change("version", 2), "of version 2: plan the set again"),
        (change("format", "coppice-plan-sets"), "found coppice-plan-sets"),
        (change("ranges", []), "expected ranges of sizes from 0 bytes on"),
        (change("least_gain", -1), "share of 0 or more"),
        (change("collective", "all_gather"), "expected plans of all_gather"),
        (change("root", 1), "expected plans of all_reduce"),
        (change("topology_sha256", "0" * 64), "topology_sha256"),
        (change("more", 1), "is not as a plan has it"),
        (change_range(0, "first_bytes", 1), "expected ranges of sizes from 0 bytes on"),
        (change_range(0, "last_bytes", 1022), "follow each other"),
        (change_range(0, "last_bytes", 1024), "follow each other"),
        (change_range(0, "last_bytes", None), "follow each other"),
        (change_range(1, "first_bytes", 5000), "follow each other"),
        (change_range(2, "last_bytes", 4095), "expected a last range without an end"),
        (change_range(0, "file", "../1-ring.json"), "the name of a plan file beside it"),
        (change_range(0, "file", "set.json"), "the name of a plan file beside it"),
        (change_range(1, "file", "1-ring.json"), "as it was written with the set"),
        (change_range(1, "file", "none.json"), "cannot read the plan"),
        (change_range(0, "sha256", "0" * 64), "as it was written with the set"),
        (change_range(1, "sizes", [TIMED]), "rising sizes within their range"),
        (change_range(0, "sizes", [TIMED, TIMED]), "rising sizes within their range"),
    ],
)
def test_changed_sets_are_refused_in_one_sentence(
    folder: Path, mutate: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = json.loads((folder / "set.json").read_text())
    mutate(document)
    (folder / "set.json").write_bytes(sealed(document))
    with pytest.raises(InputError, match=message) as refused:
        read_plan_set(folder)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"simulated_seconds": 1.1, "gap": 1.2}, "expected a plan within 3% of the fastest, ring with 1e"),
        ({"least_seconds": 2.0, "gap": 0.0}, "expected no time below the least"),
        ({"gap": 0.5}, "expected a gap of 1 between its time and the least, found 0.5"),
        ({"simulated_seconds": -1.0}, "expected times of 0 or more seconds"),
    ],
)
def test_claims_that_contradict_each_other_do_not_verify(
    folder: Path, changes: dict[str, float], message: str
) -> None:
    document = json.loads((folder / "set.json").read_text())
    document["ranges"][0]["sizes"] = [{**TIMED, **changes}]
    (folder / "set.json").write_bytes(sealed(document))
    with pytest.raises(CheckError, match=re.escape(message.removesuffix("1e"))):
        coppice.verify(folder).require_ok()


def test_edited_files_are_refused(folder: Path) -> None:
    data = (folder / "set.json").read_bytes()
    (folder / "set.json").write_bytes(data.replace(b"1023", b"1022"))
    with pytest.raises(InputError, match="was edited or damaged"):
        read_plan_set(folder)
    (folder / "set.json").write_bytes(data)
    (folder / "1-ring.json").write_bytes((folder / "2-forest.json").read_bytes())
    with pytest.raises(InputError, match="as it was written with the set"):
        read_plan_set(folder)
    (folder / "set.json").unlink()
    with pytest.raises(InputError, match=r"found no set\.json there"):
        read_plan_set(folder)


def test_plans_of_other_problems_make_no_set() -> None:
    one, other = ranges_of("ring", "forest")
    for ranges, message in (
        ((one, ranges_of("ring", "ring", collective="all_gather")[1]), "plans of one problem"),
        ((one, ranges_of("ring", "ring", topology=preset("star", gpus=5))[1]), "plans on one topology"),
        ((other,), "from 0 bytes on"),
        ((), "found none"),
    ):
        with pytest.raises(InputError, match=message):
            PlanSet(ranges=ranges, least_gain=0.03, model={})
