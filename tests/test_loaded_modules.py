"""What a command loads: modules of Coppice that are there when it has done its work.

    python tests/test_loaded_modules.py export plan.json --to msccl-xml --target rccl -o algo.xml

prints how many, and how many of each room.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
sys.argv = ["coppice", *sys.argv[1:]]
from coppice.cli import main
try:
    main()
except SystemExit as done:
    if done.code:
        raise
print(json.dumps(sorted(name for name in sys.modules)), file=sys.stderr)
"""


def loaded(*words: str) -> list[str]:
    """The modules of Coppice that a command has loaded at its end."""
    return [name for name in all_loaded(*words) if name.split(".")[0] == "coppice"]


def all_loaded(*words: str) -> list[str]:
    """All modules that a command has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    for collective in ("all_gather", "all_reduce"):
        loaded("plan", "dgx-a100", "-c", collective, "-o", str(folder / f"{collective}.json"))
    return folder


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_an_export_loads_its_writer_and_no_other(plans: Path, collective: str) -> None:
    plan, out = str(plans / f"{collective}.json"), str(plans / "algo.xml")
    found = loaded("export", plan, "--to", "msccl-xml", "--target", "rccl", "-o", out)
    assert len(found) < 180, sorted(found)
    others = ("mscclpp", "chakra", "put_signal", "nccl", "open_mpi", "rccl", "rank_order")
    for room in ("export", "doctor"):
        assert not [
            name for name in found if name.startswith(tuple(f"coppice.{room}.{each}" for each in others))
        ]


def test_plain_values_are_read_without_what_checks_those_of_any_type(plans: Path) -> None:
    """Loading it takes a tenth of a second; values that are not plain still go through it."""
    words = (
        "plan",
        "dgx-a100",
        "--boxes",
        "2",
        "-c",
        "all_reduce",
        "--set",
        "rates=nominal",
        "--no-ring",
        "--json",
    )
    assert "pydantic" not in all_loaded(*words, "-o", str(plans / "plain.json"))
    assert "pydantic" in all_loaded("switch", "model", "ring", "--loss", "0.0")


def test_what_no_doctor_reads_loads_none(plans: Path) -> None:
    found = loaded("export", "dgx-a100", "--to", "rank-order", "-o", str(plans / "order"))
    assert not [name for name in found if name.startswith("coppice.doctor")]


def test_the_help_of_exports_loads_no_writer() -> None:
    found = loaded("export", "--help")
    assert [name for name in found if name.startswith("coppice.export.")] == ["coppice.export.formats"]


@pytest.mark.parametrize(
    ("command", "strangers"),
    [
        ("plan dgx-a100 --boxes 2", ("comparison", "selection", "innetwork", "export")),
        ("simulate {plan} --size 1M", ("comparison", "selection", "innetwork", "export", "planners")),
        ("verify {plan}", ("comparison", "selection", "simulation", "planners")),
    ],
)
def test_a_command_loads_no_room_that_it_does_not_need(
    plans: Path, command: str, strangers: tuple[str, ...]
) -> None:
    found = loaded(*command.format(plan=plans / "all_reduce.json").split())
    assert not [name for name in found if name.startswith(tuple(f"coppice.{room}" for room in strangers))]


if __name__ == "__main__":
    names = loaded(*sys.argv[1:])
    rooms = Counter(name.split(".")[1] for name in names if "." in name)
    print(f"{len(names)} modules: {', '.join(f'{room} {count}' for room, count in rooms.most_common())}")
