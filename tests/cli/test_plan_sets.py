"""Sets of plans on the command line: planned into a folder, and taken by size by every command that reads plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Run
from cli.test_ctrl_c import check, press
from coppice.schedule.files.set_file import read_plan_set
from reference.plan_mutations import sealed
from support.pages import working_in

WORDS = "plan star --set gpus=4 -c all_reduce --size 1K:16M:16 --model mpi-tcp"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from typer.testing import CliRunner

    from coppice.cli import app

    made = tmp_path_factory.mktemp("sets")
    with working_in(made):
        done = CliRunner().invoke(app, [*WORDS.split(), "-o", "plans/"])
    assert done.exit_code == 0, done.output
    (made / "printed.txt").write_text(done.output)
    return made


def test_a_folder_gets_a_set(folder: Path) -> None:
    plans = read_plan_set(folder / "plans")
    assert len(plans.plans) > 1
    printed = (folder / "printed.txt").read_text()
    assert all(each.text in printed and each.file in printed for each in plans.ranges)


@pytest.mark.slow
def test_figures_of_a_set_are_those_of_its_plans(run: Run, folder: Path) -> None:
    with working_in(folder):
        figures = run(*WORDS.split(), "-o", "plans", "--json").json  # it is there, so that no slash is needed
    plans = read_plan_set(folder / "plans")
    assert figures["model_name"] == "mpi-tcp"
    assert [each["first_bytes"] for each in figures["plan_ranges"]] == [
        each.first_bytes for each in plans.ranges
    ]
    assert figures["single_loss"] > figures["least_gain"] == 0.03


def test_every_size_takes_its_plan(run: Run, folder: Path) -> None:
    plans = read_plan_set(folder / "plans")
    low, high = plans.at("1K").planner, plans.at("1M").planner
    with working_in(folder):
        rows = run("simulate", "plans", "--size", "1K:1M:1024")
        one = run("simulate", "plans/", "--size", "1K", "--json").json
        known = {row.size_bytes: row.simulated_seconds for row in plans.sizes}
        assert one["time_us"] == pytest.approx(1e6 * known[1024])
        assert one["model"]["name"] == "mpi-tcp"  # the set's own
        assert low in rows.out
        assert high in rows.out
        assert run("explain", "plans", "--size", "1K", "--json").code == 0
        assert "give `--size`, such as 1M" in run("explain", "plans").err
        assert run("report", "plans", "--size", "1K", "-o", "page.html").code == 0
        assert low in Path("page.html").read_text()
        compared = run(
            *("compare", "star", "--set", "gpus=4", "-c", "all_reduce", "--sizes", "1K,16K,4M", "-j", "1"),
            *("--model", "mpi-tcp", "-a", "plans,ring,recursive-doubling", "--json"),
        ).json
    times = {row["size_bytes"]: row["time_us"] for row in compared["rows"] if row["algorithm"] == "plans"}
    assert times == pytest.approx({size: 1e6 * known[size] for size in (1024, 16384, 2**22)}, rel=0.01)


def test_a_set_verifies_until_it_claims_too_much(run: Run, folder: Path) -> None:
    with working_in(folder):
        assert ": verified" in run("verify", "plans").out
        file = Path("plans") / "set.json"
        right = file.read_bytes()
        document = json.loads(right)
        row = document["ranges"][0]["sizes"][0]
        row["least_seconds"] /= 2
        row["simulated_seconds"] /= 2
        row["fastest_seconds"] /= 2
        file.write_bytes(sealed(document))
        try:
            found = run("verify", "plans/set.json")
        finally:
            file.write_bytes(right)
    assert found.code == 1
    assert "expected a simulated time of" in found.err
    assert "FAILED" in found.out


def test_ctrl_c_leaves_no_half_of_a_set(tmp_path: Path) -> None:
    target = tmp_path / "plans"
    words = f"plan dgx-a100 -c all_reduce --size 1K:4G -o {target}/"
    code, shown = press(words, lambda text: "trying the algorithms" in text)
    check(code, shown)
    assert list(tmp_path.iterdir()) == []
