"""`coppice simulate` from end to end: tables, JSON, traces, jobs, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import coppice
from coppice.bounds.problem import Problem
from coppice.cli import Commands
from coppice.cli.simulate import simulate
from coppice.collectives import Collective
from coppice.schedule.files.plan_file import write_plan
from coppice.schedule.loads import schedule_loads
from coppice.schedule.plan import Plan
from coppice.simulation.models import DEFAULT_MODEL, Model
from coppice.simulation.simulator import fastest
from coppice.simulation.simulator import simulate as run_simulation
from coppice.topology import Topology, fat_tree, preset, subset
from simulation.cases import ring_on

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run() -> Run:
    app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command("simulate")(simulate)
    app.callback()(lambda: None)

    def call(*arguments: str | Path, stdin: bytes | None = None) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["simulate", *map(str, arguments)], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


@pytest.fixture(scope="module")
def planned() -> Plan:
    problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_REDUCE)
    return coppice.plan(problem, ring=False).plan


@pytest.fixture
def plan_file(planned: Plan, tmp_path: Path) -> Path:
    write_plan(planned, tmp_path / "plan.json")
    return tmp_path / "plan.json"


def ring_file(topology: Topology, path: Path, collective: Collective = Collective.ALL_REDUCE) -> Path:
    body = ring_on(topology, collective)
    problem = Problem(topology=topology, collective=collective)
    write_plan(Plan(problem=problem, inv_rate=schedule_loads(body).inv_rate, schedule=body), path)
    return path


def figures(out: str) -> dict[str, Any]:
    value = json.loads(out)
    assert isinstance(value, dict)
    return value


def test_one_size_says_what_was_simulated(run: Run, plan_file: Path, planned: Plan) -> None:
    code, out, _ = run(plan_file, "--size", "64M")
    timeline = fastest(planned.body, 2**26, model=DEFAULT_MODEL)
    assert code == 0
    assert "all_reduce on 2 x dgx-h100 (16 ranks)" in out
    assert DEFAULT_MODEL.text in out
    assert f"{timeline.pieces} pieces per chunk (the best), {timeline.messages.count} messages" in out
    assert f"{timeline.time_us:.2f} us: algbw {timeline.algbw_gb_per_s:.2f} GB/s" in out
    assert "Busiest links" in out
    assert "Critical path (us)" in out
    share = float(out.split("% of the optimum")[0].split()[-1])
    optimum = float(planned.inv_rate * 2**26 / planned.problem.shards / 1000)
    assert share == pytest.approx(100 * optimum / timeline.time_us, abs=0.06)


def test_json_holds_the_figures(run: Run, plan_file: Path, planned: Plan) -> None:
    _, out, _ = run(plan_file, "--size", "1K,1M", "--pieces", "4", "--list", "links=3", "--json")
    found = figures(out)
    assert found["topology_sha256"] == planned.topology.sha256
    assert [row["size_bytes"] for row in found["sizes"]] == [2**10, 2**20]
    for row in found["sizes"]:
        timeline = run_simulation(planned.body, row["size_bytes"], pieces=4)
        assert row["time_us"] == timeline.time_us
        assert row["busbw_gb_per_s"] == timeline.busbw_gb_per_s
        assert row["pieces"] == 4
        assert row["protocol"] == timeline.protocol
        assert row["hashed"] is None
        assert sum(row["critical_us"].values()) == pytest.approx(timeline.time_us)
        assert 0 < row["share_of_optimum"] < 1
        assert len(row["links"]) == 3
        assert row["links"][0]["utilisation"] == max(each["utilisation"] for each in row["links"])


def test_options_reach_the_model(run: Run, plan_file: Path, planned: Plan) -> None:
    assumed = ("overhead=2.5", "engines=1", "reduce_rate=100", "store_and_forward=yes")
    options = [word for each in assumed for word in ("--assume", each)]
    _, out, _ = run(plan_file, "--size", "1M", "--pieces", "2", *options, "--json")
    model = Model(
        overhead_us=2.5, send_engines=1, receive_engines=1, reduce_gb_per_s=100, store_and_forward=True
    )
    expected = run_simulation(planned.body, 2**20, model=model, pieces=2).time_us
    assert figures(out)["sizes"][0]["time_us"] == figures(out)["time_us"] == expected
    _, text, _ = run(plan_file, "--pieces", "2", *options)
    assert "store-and-forward switches, 1 send and 1 receive engines, adding at 100 GB/s" in text
    _, fair, _ = run(plan_file, "--size", "1M", "--pieces", "2", "--assume", "sharing=fair", "--json")
    assert (
        figures(fair)["sizes"][0]["time_us"]
        == run_simulation(planned.body, 2**20, model=replace(DEFAULT_MODEL, sharing="fair"), pieces=2).time_us
    )


def test_table_of_one_protocol(run: Run, plan_file: Path) -> None:
    options = ["--size", "1K:1M:32", "--pieces", "4", "--protocol", "LL128", "--channels", "8"]
    code, out, _ = run(plan_file, *options)
    assert code == 0
    assert "nccl-2.30: LL128, 16 workers of a GPU for 0.3 us, 8 channels, fifo links" in out
    _, text, _ = run(plan_file, *options, "--json")
    lines = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    for line, row in zip(lines, figures(text)["sizes"], strict=True):
        assert int(line[0]) == row["size_bytes"]
        assert float(line[1]) == pytest.approx(row["time_us"], rel=0.01)
        assert (line[5], row["protocol"]) == ("LL128", "ll128")


def test_seeds_and_multipath(run: Run, tmp_path: Path) -> None:
    network = fat_tree(leaves=4, gpus_per_leaf=2, spines=4, oversubscription=2, gb_per_s=8)
    file = ring_file(network, tmp_path / "ring.json")
    code, out, _ = run(file, "--size", "8M", "--pieces", "1", "--seeds", "9", "--json")
    assert code == 0
    hashed = figures(out)["sizes"][0]["hashed"]
    assert len(hashed["times_us"]) == 9
    assert hashed["multipath_us"] < hashed["median_us"] <= hashed["p99_us"] == max(hashed["times_us"])
    _, out, _ = run(file, "--size", "8M", "--pieces", "1", "--multipath", "--json")
    assert figures(out)["sizes"][0]["time_us"] == hashed["multipath_us"]
    _, text, _ = run(file, "--size", "8M", "--pieces", "1", "--seeds", "9")
    assert "of 9 seeds" in text
    assert "ideal multipath" in text


def test_trace_is_written(run: Run, plan_file: Path, tmp_path: Path) -> None:
    code, out, _ = run(plan_file, "--size", "1M", "--pieces", "1", "--trace", tmp_path / "t.json")
    assert code == 0
    document = json.loads((tmp_path / "t.json").read_text())
    shown = document["otherData"]["messages_shown"]
    assert f"t.json: {shown} of {shown} messages" in out


def test_a_trace_of_several_sizes_shows_the_largest(run: Run, plan_file: Path, tmp_path: Path) -> None:
    code, out, _ = run(plan_file, "--size", "1K,1M", "--pieces", "1", "--trace", tmp_path / "several.json")
    assert code == 0
    assert re.search(r"several\.json: \d+ of \d+ messages at 1M, the largest size$", out, re.MULTILINE)
    assert run(plan_file, "--size", "1M", "--pieces", "1", "--trace", tmp_path / "one.json")[0] == 0
    assert (tmp_path / "several.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def test_in_network_plans_are_simulated(run: Run, tmp_path: Path) -> None:
    box = preset("dgx-h100")
    problem = Problem(topology=box, collective=Collective.ALL_REDUCE)
    result = coppice.plan(problem, in_network=True, ring=False)
    write_plan(result.plan, tmp_path / "plan.json")
    code, out, _ = run(tmp_path / "plan.json", "--size", "4G", "--json")
    assert code == 0
    row = figures(out)["sizes"][0]
    assert 0.9 < row["algbw_gb_per_s"] / float(result.algbw_gb_per_s) <= 1
    # Without the switch adding and copying, no plan is as fast.
    plain = coppice.plan(problem, ring=False)
    assert row["algbw_gb_per_s"] > float(plain.algbw_gb_per_s)


def jobs_file(path: Path, *rows: dict[str, Any], **members: Any) -> Path:
    path.write_text(json.dumps({"format": "coppice-jobs", "version": 1, "jobs": rows, **members}))
    return path


def test_jobs_share_a_cluster(run: Run, tmp_path: Path) -> None:
    cluster = preset("dgx-h100", boxes=2, fabric="switch")
    ring_file(subset(cluster, range(8)), tmp_path / "tp.json")
    ring_file(cluster, tmp_path / "dp.json")
    jobs = jobs_file(
        tmp_path / "jobs.json",
        {"name": "tp", "plan": "tp.json", "size": "16M"},
        {"name": "dp", "plan": "dp.json", "size": 2**24, "start_us": 5, "pieces": 1},
    )
    code, out, _ = run("--together", jobs, "--json", "--trace", tmp_path / "t.json")
    assert code == 0
    found = figures(out)
    assert found["ranks"] == 16
    tensor, data = found["jobs"]
    assert tensor["slowdown"] > 1 <= data["slowdown"]
    assert set(tensor["shared_link"]["others_us"]) == {"dp"}
    assert data["start_us"] == 5
    assert found["time_us"] == max(row["start_us"] + row["time_us"] for row in (tensor, data))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["args"]["job"] for e in events if e.get("cat") in ("copy", "reduce")} == {"tp", "dp"}
    _, text, _ = run("--together", jobs)
    assert "2 jobs on 2 x dgx-h100" in text
    assert f"{tensor['slowdown']:.2f}" in text


def test_jobs_may_name_their_cluster(run: Run, tmp_path: Path) -> None:
    ring_file(preset("dgx-a100"), tmp_path / "a.json")
    jobs = jobs_file(
        tmp_path / "jobs.json", {"name": "a", "plan": "a.json", "size": "1M"}, topology="dgx-a100"
    )
    assert figures(run("--together", jobs, "--json")[1])["topology"] == "dgx-a100"
    wrong = jobs_file(
        tmp_path / "wrong.json", {"name": "a", "plan": "a.json", "size": "1M"}, topology="dgx-h100"
    )
    code, _, err = run("--together", wrong)
    assert code == 2
    assert "parts of one cluster" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["PLAN", "--pieces", "0"], "`--pieces` to be a number"),
        (["PLAN", "--pieces", "many"], "`--pieces` to be a number"),
        (["PLAN", "--size", "abc"], "expected --size"),
        (["PLAN", "--seeds", "3"], "nothing is left to a hash"),
        (["PLAN", "--seeds", "3", "--multipath"], "leave out --multipath"),
        (["PLAN", "--protocol", "ll64"], "expected a protocol of simple, ll, ll128"),
        (["PLAN", "--channels", "99"], "1 .. 64 channels"),
        (["PLAN", "--channels", "2", "--assume", "gpu=kepler"], "expected a generation"),
        (["PLAN", "--assume", "channel_rate=20"], "give `--channels`"),
        (["PLAN", "--assume", "store_and_forward=yes", "--assume", "sharing=fair"], "choose sharing"),
        (["PLAN", "--assume", "reduce_rate=0"], "above 0 GB/s"),
        ([], "expected a plan file"),
        (["PLAN", "--together", "jobs.json"], "--together names its plans"),
        (["--together", "nowhere.json"], "cannot read the jobs"),
        (["nowhere.json"], "cannot read the plan"),
    ],
)
def test_bad_options_are_refused(run: Run, plan_file: Path, arguments: list[str], words: str) -> None:
    code, out, err = run(*(plan_file if each == "PLAN" else each for each in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "coppice-jobs", "version": 2, "jobs": []}',
        '{"format": "coppice-plan", "version": 1, "jobs": []}',
        '{"format": "coppice-jobs", "version": 1, "jobs": []}',
        '{"format": "coppice-jobs", "version": 1, "jobs": [{"name": "a"}]}',
        '{"format": "coppice-jobs", "version": 1, "jobs": [{"name": "a", "plan": "no.json", "size": 1}]}',
        '{"format": "coppice-jobs", "version": 1, "jobs": [], "extra": 1}',
    ],
)
def test_bad_job_files_are_refused(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs.json").write_text(text)
    code, _, err = run("--together", tmp_path / "jobs.json")
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
