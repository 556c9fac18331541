"""The benchmark scripts run at tiny sizes, and their arithmetic is right; nothing is timed here."""

from __future__ import annotations

import argparse
import doctest
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.planners.synthesis.synthesizing import METHODS
from coppice.topology.presets import preset
from support.benchmark_scripts import BENCHMARKS, load_benchmark


@pytest.fixture(name="module")
def fixture_module(monkeypatch: pytest.MonkeyPatch):
    """Import a benchmark script; what it imports itself is found beside it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark


@pytest.mark.slow
def test_forest_prints_table_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable,
            str(BENCHMARKS / "forest.py"),
            "--only",
            "dgx-a100 x [24]*",
            "--json",
            str(out),
            "--limit",
            "60",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "processor:" in done.stdout
    assert "Growth with the number N" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("dgx-a100 x 2 ")]
    assert len(lines) == 1
    assert "optimal" in lines[0]
    figures = json.loads(out.read_text())
    case = figures["cases"]["dgx-a100 x 4"]
    assert case["inv_rate"] == case["planned_inv_rate"] == "3/25"
    assert case["verified"]
    assert case["peak_gib"] > 0
    assert set(figures["machine"]) >= {"processor", "python", "compiler", "packages"}


def test_unknown_case_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "forest.py"), "--only", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no case matches" in done.stderr


def test_a_process_that_takes_too_long_leaves_its_last_line(module, tmp_path: Path) -> None:
    forest = module("forest")
    script = tmp_path / "slow.py"
    script.write_text("import time\nprint('{\"ranks\": 3}', flush=True)\ntime.sleep(60)\n")
    assert forest.run(str(script), [], 2.0) == {"ranks": 3, "failed": "no result in 2 s"}
    script.write_text("raise SystemExit('out of luck')\n")
    assert forest.run(str(script), [], 60.0) == {"failed": "out of luck"}


def test_every_small_case_has_a_topology(module) -> None:
    cases = module("planner_cases")
    names = [case.name for case in cases.CASES]
    assert len(names) == len(set(names))
    for case in cases.CASES:
        if case.quick:
            assert cases.topology_of(case).num_ranks > 1


@pytest.mark.parametrize(("preset", "links"), [("dgx-a100", 4), ("mi250", 2)])
def test_slow_nic_halves_one_network_link(module, preset: str, links: int) -> None:
    cases = module("planner_cases")
    [slow] = [case for case in cases.CASES if case.name == f"{preset} x 4, one NIC at half rate"]
    [whole] = [case for case in cases.CASES if case.name == f"{preset} x 4"]
    before, after = cases.topology_of(whole), cases.topology_of(slow)
    rates = [(before.gb_per_s(e), after.gb_per_s(e)) for e in range(before.num_links)]
    changed = [pair for pair in rates if pair[0] != pair[1]]
    assert len(changed) == links
    assert all(new == old / 2 for old, new in changed)


def test_goals_and_misses(module) -> None:
    forest, cases = module("forest"), module("planner_cases")
    goal = cases.Goal(figure="plan_s", limit=3.0)
    case = cases.Case(name="x", family="x", preset="ring", goals=(goal,))
    assert forest.misses(case, {"plan_s": 3.0, "verified": True, "optimal": True}) == []
    assert forest.misses(case, {"plan_s": 4.5}) == ["MISS plan <= 3 s: 4.5 s"]
    assert forest.misses(case, {"failed": "no result in 5 s"}) == ["MISS plan <= 3 s: no result in 5 s"]
    assert forest.row(case, {"ranks": 4, "bound_s": 1.0, "failed": "no result in 5 s"})[:3] == (
        "x",
        "4",
        "1 s",
    )
    assert forest.misses(case, {"plan_s": 1.0, "verified": False}) == ["MISS verified"]
    assert forest.misses(case, {"plan_s": 1.0, "optimal": False}) == ["MISS optimal"]


def test_growth_exponent(module) -> None:
    forest = module("forest")
    assert forest.exponent([(n, 3e-6 * n**2.5) for n in (8, 16, 64)]) == pytest.approx(2.5)
    assert forest.exponent([(8, 1.0), (8, 2.0)]) is None


def test_numbers_are_short(module) -> None:
    number = module("tables").number
    assert [number(x, unit="s") for x in (2.0, 0.00123, 4.5e-6)] == ["2 s", "1.23 ms", "4.5 us"]
    assert [number(x) for x in (None, 7, 1234567, 2.4667)] == ["-", "7", "1,234,567", "2.47"]
    assert math.isclose(float(number(0.333)), 0.333)


def test_tables_as_text_and_markdown(module) -> None:
    table = module("tables").Table(
        title="T", header=("case", "GPUs", "goals"), rows=[("a", "8", "ok"), ("bb", "16", "")]
    )
    assert table.text() == "T\n-\ncase  GPUs  goals\na        8  ok\nbb      16\n"
    assert "| bb | 16 |  |" in table.markdown()


def test_what_a_script_made_is_replaced_and_nothing_else(module, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Words\n\n<!-- generated by a.py: begin -->\nold\n<!-- generated by a.py: end -->\n"
        "<!-- generated by ab.py: begin -->\nkept\n<!-- generated by ab.py: end -->\nmore\n"
    )
    replace_generated = module("tables").replace_generated
    replace_generated(page, "a.py", "new\nlines\n")
    wanted = (
        "# Words\n\n<!-- generated by a.py: begin -->\nnew\nlines\n<!-- generated by a.py: end -->\n"
        "<!-- generated by ab.py: begin -->\nkept\n<!-- generated by ab.py: end -->\nmore\n"
    )
    assert page.read_text() == wanted
    with pytest.raises(SystemExit, match=r"<!-- generated by b\.py: begin -->.* found no such place"):
        replace_generated(page, "b.py", "new\n")
    assert page.read_text() == wanted


def test_pages_have_places_for_the_scripts_that_write_them() -> None:
    pages = {page.name: page.read_text() for page in BENCHMARKS.glob("*.md")}
    calls = [
        call
        for script in BENCHMARKS.glob("*.py")
        for call in re.findall(r'replace_generated\((?:HERE / "(.*?)"|PAGE), "(.*?)"', script.read_text())
    ]
    assert len(calls) > 7
    for page, script in calls:
        text = pages[page or script.replace(".py", ".md")]
        begin, end = (f"<!-- generated by {script}: {which} -->" for which in ("begin", "end"))
        assert text.count(begin) == text.count(end) == 1
        assert text.index(begin) < text.index(end)


def test_heights_of_reference_trees(module) -> None:
    height = module("reference").tree_height
    routes = [[("a", "s"), ("s", "b")], [("b", "c")], [("a", "d")]]
    assert height("a", routes) == 2


def test_reference_checkout_is_asked_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "forest.py"), "--reference", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "checkout of ForestColl" in done.stderr


def test_measured_against_a_reference_with_the_same_interface(tmp_path: Path) -> None:
    """A stand-in with the names that the runner calls: one star tree per GPU, two trees per root."""
    (tmp_path / "topologies.py").write_text(
        "import networkx as nx\n"
        "def a100_topology(boxes):\n"
        "    graph = nx.DiGraph()\n"
        "    graph.add_edge('a', 'b', capacity=1)\n"
        "    graph.add_edge('b', 'a', capacity=1)\n"
        "    return graph, ['a', 'b']\n"
    )
    (tmp_path / "pipeline_allgather.py").write_text(
        "class OptimalBranchingsAlgo:\n"
        "    def __init__(self, graph, capacitated, compute_nodes): pass\n"
        "    def binary_search(self): return 3.0, 2\n"
        "def optimal_pipeline_spanning_trees(graph, compute_nodes, fixed_K):\n"
        "    trees = {('a', 0): [[('a', 'b')]], ('a', 1): [[('a', 'b')]], ('b', 0): [[('b', 'a')]]}\n"
        "    return (3.0, 2), (trees, {('a', 0): 1, ('a', 1): 1, ('b', 0): 2})\n"
    )
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "reference.py"), str(tmp_path), "dgx-a100", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)
    assert figures["inv_rate"] == "3/2"
    assert figures["distinct_trees"] == 2
    assert figures["mean_height"] == 1


@pytest.mark.parametrize("name", ["mpi_traffic", "mpich_traffic"])
def test_docstring_examples_of_tables(module, name: str) -> None:
    assert doctest.testmod(module(name)).failed == 0


def test_language_compiles_the_examples(module) -> None:
    language = module("language")
    row = language.own_row("all_reduce_ring", {"ranks": 4})
    assert row[:6] == ("all_reduce_ring 4", "24", "28", "7", "1", "1")
    assert row[-1] == "yes"


def test_language_replays_operations_of_the_reference(module) -> None:
    """What is noted of an example becomes the same program here."""
    language = module("language")
    swap = [[False, 0, "input", 0, 1, "scratch", 0, 1], [True, 1, "scratch", 0, 1, "input", 0, 1]]
    back = [[False, 1, "input", 0, 0, "input", 0, 1]]
    found = {
        "collective": "allreduce", "ranks": 2, "chunks": 1, "in_place": True, "instances": 1,
        "protocol": "Simple", "operations": swap + back,
    }  # fmt: skip
    program = language.replayed(found)
    program.check()
    assert program.num_operations == 3
    assert language.verdict(language.per_rank_program(program)) == "yes"


def test_language_without_the_reference_says_so(module, tmp_path: Path) -> None:
    rows = module("language").reference_rows(tmp_path, "allgather_ring.py 8 1 1", tmp_path)
    assert len(rows) == 1
    assert "msccl" in rows[0][-1]


def test_sccl_decides_an_instance() -> None:
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'coppice[smt]'")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "sccl.py"), "--only", "all_gather, dgx-1v (2, 4, 3)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "unsat" in done.stdout


@pytest.fixture(name="gpu")
def fixture_gpu() -> ModuleType:
    return load_benchmark("gpu")


def test_without_a_gpu_it_says_so_and_succeeds(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if gpu.device():
        pytest.skip("a GPU is there")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--write"])
    gpu.main()
    assert capsys.readouterr() == ("no GPU\n", "")
    assert not gpu.PAGE.exists()


def test_rows_of_a_bench_become_lines(gpu: ModuleType) -> None:
    row = {
        "collective": "all_reduce",
        "size_bytes": 2**20,
        "algorithm": "forest",
        "time_us": 12.34,
        "algbw_gb_per_s": 84.97,
        "wrong": 0,
        "refusal": "",
    }
    rows = [row, {**row, "refusal": "expected this,\nfound that | there"}]
    text = "".join(json.dumps(each) + "\n" for each in rows)
    trial = gpu.Trial(what="a bench", command=[sys.executable, "-c", f"print({text!r})"])
    assert list(trial.lines()) == [
        "| a bench | all_reduce | 1 | forest | 12.3 | 84.97 | 0 | |",
        "| a bench | all_reduce | 1 | forest | | | | expected this, found that / there |",
    ]


def test_last_words_of_what_fails_or_hangs(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('Error: no puts here\\nbye', file=sys.stderr); sys.exit(3)"
    trial = gpu.Trial(what="a bench", command=[sys.executable, "-c", program])
    assert list(trial.lines()) == ["| a bench | | | | | | | status 3: Error: no puts here |"]
    monkeypatch.setattr(gpu, "LIMIT_S", 0.2)
    trial = gpu.Trial(what="a bench", command=[sys.executable, "-c", "import time; time.sleep(60)"])
    assert list(trial.lines()) == ["| a bench | | | | | | | no answer in 0.2 s |"]


@pytest.fixture(name="tacos")
def fixture_tacos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("tacos")


@pytest.fixture(name="synthesis")
def fixture_synthesis(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("synthesis")


def test_published_times_are_in_the_table(tacos: ModuleType) -> None:
    options = argparse.Namespace(only="torus 3x3x3", attempts=5, reference=None)
    (row,) = tacos.published(options).rows
    assert row[:4] == ("torus 3x3x3", "27", "1", "3706.20 us")
    assert abs(float(row[5].rstrip("%"))) <= 1


def test_every_grid_names_what_the_public_program_calls_it(tacos: ModuleType) -> None:
    for grid in tacos.GRIDS:
        header, name, arguments = grid.source
        assert header.replace("_", "") == name.lower().replace("_", "")
        # Sizes count the last dimension first, as the constructors do.
        assert arguments.split(", ")[: len(grid.dims)] == [str(size) for size in grid.dims[::-1]]


def test_the_common_set(synthesis: ModuleType) -> None:
    found = {each.name: each.topology for each in synthesis.networks()}
    assert len(found) == 8
    # The bound of two NDv2 boxes that TE-CCL's schedules are measured by.
    assert bound(Problem(found["ndv2 x 2"], "all_gather")).algbw_gb_per_s == 25


def test_rows_are_kept_and_complete(synthesis: ModuleType) -> None:
    rows = json.loads(synthesis.ROWS.read_text())
    for network in synthesis.networks():
        for collective in synthesis.COLLECTIVES:
            own = rows[network.name][collective.value]
            assert {"tacos", "syccl", synthesis.PLANNED} <= set(own)
            table = synthesis.table_of(network, collective, own)
            timed = [name for name in METHODS if "times_us" in own.get(name, {})]
            assert [row[0] for row in table.rows] == [synthesis.PLANNED, *timed]
            assert all(own[name]["gap"] >= 0 for name in timed)
            assert any(row[-1] != "-" for row in table.rows)


TE_CCL = """import json, sys
asked = json.load(open(sys.argv[sys.argv.index("--input_args") + 1]))
assert asked["TopologyParams"]["name"] == "DGX1" and asked["InstanceParams"]["num_epochs"] == 4
flows = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a in range(8) for b in NEAR[a]]
flows += [f"Chunk 0 from {a} traveled over {via}->{b} in epoch 1" for a, via, b in FAR]
json.dump({"7-Flows": flows}, open(asked["InstanceParams"]["schedule_output_file"], "w"))
"""
SYCCL = """#!{python}
import sys
from coppice import load, plan
from coppice.export.registry import export
cluster, collective, size, out = sys.argv[1:]
assert int(size) > 0
export(plan(load(cluster), collective), "msccl-xml", out, target="msccl")
"""


@pytest.fixture(name="public")
def fixture_public(module, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = module("public_programs")
    monkeypatch.setattr(found, "SIZES", (2**20,))
    monkeypatch.setattr(found, "MODELS", ("ideal",))
    return found


def test_te_ccl_runs_from_a_directory(public: ModuleType, tmp_path: Path) -> None:
    """A stand-in that reads what TE-CCL reads, and writes an all-gather as it does."""
    problem = public.CASES[0].problem
    links = zip(problem.topology.src.tolist(), problem.topology.dst.tolist(), strict=True)
    near: dict[int, list[int]] = {rank: [] for rank in range(8)}
    for src, dst in links:
        near[src].append(dst)
    far = [
        (a, next(via for via in near[a] if b in near[via]), b)
        for a in range(8)
        for b in range(8)
        if a != b and b not in near[a]
    ]
    package = tmp_path / "te-ccl" / "teccl"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(f"NEAR, FAR = {near}, {far}\n" + TE_CCL)
    (row,) = public.rows(public.programs(tmp_path, 4), "TE-CCL dgx-1v*")
    cells, faster = row
    assert cells[:2] == ("TE-CCL", "dgx-1v all_gather")
    assert cells[6].startswith("+")
    assert not faster
    # What is no all-gather is refused, and so is what TE-CCL never writes.
    (package / "__main__.py").write_text(f"NEAR, FAR = {near}, {far[:-1]}\n" + TE_CCL)
    with pytest.raises(CheckError):
        list(public.rows(public.programs(tmp_path, 4), "TE-CCL dgx-1v*"))
    with pytest.raises(public.FailedError, match="expected flows"):
        public.schedule_of(["Chunk 0 took 1->2"], problem)
    # Without a licence for the model it writes nothing: the row says why.
    (package / "__main__.py").write_text("raise SystemExit('Model too large for size-limited license')")
    failed = [cells for cells, _ in public.rows(public.programs(tmp_path, 4), "TE-CCL*")]
    assert {cells[-1] for cells in failed} == {"Model too large for size-limited license"}


def test_a_program_that_writes_msccl_xml_runs_from_a_directory(public: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "syccl"
    program.write_text(SYCCL.replace("{python}", sys.executable))
    program.chmod(0o755)
    body = public.programs(tmp_path, 4)["SyCCL"](public.CASES[1], 2**20)
    assert body.topology.num_ranks == 16
    assert body.num_transfers >= 16 * 15


def test_a_directory_without_programs_is_refused(
    public: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        public.main(["--programs", str(tmp_path)])
    assert "expected te-ccl or syccl in" in capsys.readouterr().err


def test_each_size_is_planned_by_itself(module, monkeypatch: pytest.MonkeyPatch) -> None:
    every = module("every_size")
    monkeypatch.setattr(every, "CLUSTERS", {"small": lambda: preset("star", gpus=3)})
    monkeypatch.setattr(every, "SIZES", (2**10, 2**20, 2**26))
    planned: list[list[int]] = []
    clock = [0.0]
    slower = {2**10: 1.01, 2**20: 1.3, 2**26: 1.0}

    def plan_for(problem: Any, sizes: list[int], **_: Any) -> SimpleNamespace:
        assert problem.root == 0
        planned.append(sizes)
        (size,) = sizes
        clock[0] += 7.25 if size == 2**20 else 1.0
        least = SimpleNamespace(time_us=10.0, limit=f"{size} B must enter gpu1")
        taken = SimpleNamespace(fastest={size: ("forest", 10.0 * slower[size])})
        return SimpleNamespace(least={size: least}, preferred=taken)

    monkeypatch.setattr(every, "plan_for", plan_for)
    monkeypatch.setattr(every.time, "process_time", lambda: clock[0])
    row = every.counted("small", Collective.BROADCAST, "nccl-2.30")
    assert planned == [[2**10], [2**20], [2**26]]
    assert (row["gap"], row["seconds"]) == ([0.01, 0.3, 0.0], [1.0, 7.2, 1.0])
    assert row["limit"] == "1048576 B must enter gpu1"
    made = every.table([row], ["small"], (0.05, 0.15))
    assert {"2 of 3", "30.0%", "1M", "7.2 s"} <= set(made.rows[0])
    # What is within the goal is not planned again.
    planned.clear()
    slower[2**20] = 1.02
    again = every.counted("small", Collective.BROADCAST, "nccl-2.30", row)
    assert planned == [[2**20]]
    assert again["gap"] == [0.01, 0.02, 0.0]


def test_every_other_algorithm_stands_beside_plans_of_sizes(module, monkeypatch: pytest.MonkeyPatch) -> None:
    others = module("every_size_rivals")
    monkeypatch.setattr(others, "METHODS", {"syccl": ""})
    monkeypatch.setattr(others, "SIZES", (2**20,))
    monkeypatch.setattr(others, "CLUSTERS", {"small": lambda: preset("star", gpus=3)})
    row = others.counted("small", Collective.ALL_REDUCE, "nccl-2.30", 5.0)
    assert others.faster(row) == 0
    assert row["tried"] > 10
    for plan_us, rival_us in zip(row["plan_us"], row["rival_us"], strict=True):
        assert plan_us <= rival_us * (1 + others.SAME)
    assert "0 of 1 cells" in others.table([row]).notes[0]
    # A plan that is slower is found out.
    slow = SimpleNamespace(preferred=SimpleNamespace(time_us=dict.fromkeys(others.SIZES, 1e9)))
    monkeypatch.setattr(others, "plan_for", lambda *_, **__: slow)
    slowly = others.planned_us("small", Collective.ALL_REDUCE, "nccl-2.30")
    assert others.faster({**row, "plan_us": slowly}) == 1


def test_what_is_offered_after_faults_stands_beside_the_catalogue(
    module, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = module("faults")
    monkeypatch.setattr(faults, "CLUSTERS", {"small": lambda: preset("ring", gpus=4)})
    monkeypatch.setattr(faults, "STRUCK", {"small": (faults.Fault(("gpu0", "gpu1"), "lost"),)})
    finished = []
    table = faults.beside_others("*", ["all_gather"], [2**20], finished.append)
    (row,) = table.rows
    assert len(row) == len(faults.SIZES_HEADER)
    assert row[:4] == ("small", "all_gather", "gpu0 - gpu1 lost", "1M")
    assert row[-1].startswith("+")
    assert finished == [table]
    # What is faster than the offer is found out.
    monkeypatch.setattr(faults, "of_the_catalogue", lambda *_, **__: [("ring", {2**20: 1.0})])
    (row,) = faults.beside_others("*", ["all_gather"], [2**20], finished.append).rows
    assert row[-2] == "ring"
    assert row[-1].startswith("MISS -")
