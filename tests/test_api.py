"""The Python API: verbs take what others return, wrong arguments are refused in a sentence, objects print in short."""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from coppice.cli import COMMANDS
from coppice.errors import InputError
from coppice.topology.readers import to_networkx
from coppice.tuning.building import settings_text
from support.paths import ROOT

BOX = "dgx-a100"


@pytest.fixture(scope="module")
def cluster() -> coppice.Topology:
    return coppice.load(BOX, boxes=2)


@pytest.fixture(scope="module")
def result(cluster: coppice.Topology) -> coppice.PlannedResult:
    return coppice.plan(cluster, "all_reduce")


@pytest.fixture(scope="module")
def comparison() -> coppice.Comparison:
    return coppice.compare("star", "all_gather", sizes="1K:1M:32", jobs=1)


class TestVerbsTakeWhatOthersReturn:
    def test_topologies_from_anything(self, cluster: coppice.Topology) -> None:
        import networkx as nx

        text = (ROOT / "examples" / "two-dgx-a100.json").read_text()
        for source in (
            ROOT / "examples" / "two-dgx-a100.json",
            str(ROOT / "examples" / "two-dgx-a100.json"),
            text,
            text.encode(),
        ):
            assert coppice.load(source).num_ranks == 16
        graph = nx.cycle_graph(5)
        nx.set_edge_attributes(graph, 25, "gb_per_s")
        assert coppice.load(graph, kind="gpu").num_ranks == 5
        assert coppice.load(graph, kind="gpu", rate="gb_per_s", unit="Gb/s").gb_per_s(0) == Fraction(25, 8)
        assert coppice.load(to_networkx(cluster)) == cluster
        with pytest.raises(InputError, match="expected no `boxes` with a graph, found 2"):
            coppice.load(graph, boxes=2)
        assert coppice.load(cluster) is cluster
        assert coppice.load(coppice.Problem(cluster, "broadcast", root=1)) is cluster
        assert coppice.load(cluster, ranks=range(4)).num_ranks == 4
        assert coppice.load("torus", dims="4x4").num_ranks == 16
        assert coppice.load(BOX, rates="measured").sha256 != coppice.load(BOX).sha256

    def test_what_a_reader_leaves_out_is_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="the options gpu mean nothing"):
            coppice.load(ROOT / "examples" / "two-dgx-a100.json", gpu="a100")

    def test_problems(self, cluster: coppice.Topology, result: coppice.PlannedResult) -> None:
        problem = coppice.Problem(topology=cluster, collective="all-reduce")  # type: ignore[arg-type]
        assert problem.collective is coppice.Collective.ALL_REDUCE
        rates = {coppice.bound(each).algbw_gb_per_s for each in (problem, result.plan, result.bound)}
        rates |= {
            coppice.bound(cluster, name).algbw_gb_per_s
            for name in ("all_reduce", "AllReduce", "MPI_Allreduce")
        }
        assert rates == {Fraction(520, 3)}
        weighted = coppice.Problem(cluster, "all_gather", weights=np.arange(1, 17))
        assert weighted.weights == tuple(range(1, 17))
        assert coppice.plan(cluster, "broadcast", root=3, ring=False).plan.problem.root == 3
        assert coppice.plan(cluster, "broadcast", ring=False).plan.problem.root == 0

    def test_plans(self, result: coppice.PlannedResult, tmp_path: Path) -> None:
        path = tmp_path / "plan.json"
        coppice.write_plan(result, path)
        for source in (result, result.plan, path, str(path), coppice.read_plan(path)):
            assert coppice.verify(source).ok
            assert coppice.simulate(source, "1M").time_us == coppice.simulate(result, 2**20).time_us
            assert coppice.explain(source).record() == coppice.explain(result).record()
        assert (
            coppice.simulate(result.plan.body, 2**20).time_us
            < coppice.simulate(result, "1M", pieces=1).time_us
        )
        assert coppice.bound(result).algbw_gb_per_s == coppice.bound(result.plan).algbw_gb_per_s

    def test_trees(self, result: coppice.PlannedResult) -> None:
        trees = result.plan.trees
        assert len(trees) == 64
        shares = {"broadcast": Fraction(0), "reduce": Fraction(0)}
        links = set(zip(result.plan.topology.src.tolist(), result.plan.topology.dst.tolist(), strict=True))
        index = result.plan.topology.node_index
        for tree in trees:
            shares[tree.phase] += tree.share
            assert sorted(tree.ranks) == list(range(16))
            assert set(tree.parents) | {tree.root} == {
                f"box{box}/gpu{gpu}" for box in (0, 1) for gpu in range(8)
            }
            for node, path in tree.paths.items():
                ends = (path[-1], path[0]) if tree.phase == "broadcast" else (path[0], path[-1])
                assert ends == (node, tree.parents[node])
                assert all((index[a], index[b]) in links for a, b in pairwise(path))
            assert sum(len(tree.children(node)) for node in (tree.root, *tree.parents)) == 15
            assert str(tree).splitlines()[0] == tree.root
        assert shares == {"broadcast": 1, "reduce": 1}
        heights = {phase: max(tree.height for tree in trees if tree.phase == phase) for phase in shares}
        assert sum(heights.values()) == result.shape.max_height  # type: ignore[union-attr]
        assert [tree.index for tree in trees[3:5]] == [3, 4]
        flow = coppice.plan("star", "all_to_all")
        with pytest.raises(coppice.InputError, match="expected a forest"):
            flow.plan.trees  # noqa: B018

    def test_trees_of_templates_are_written_out(self) -> None:
        templates = coppice.plan("torus", "all_gather", ring=False).plan
        assert templates.forest is not None
        assert len(templates.trees) == templates.forest.num_trees * templates.forest.num_images
        assert sum(tree.share for tree in templates.trees) == 1

    def test_files_for_runtimes(self, tmp_path: Path) -> None:
        plan, path = coppice.plan("mi250", "all_gather"), tmp_path / "algo.xml"
        made = coppice.export(plan, "msccl-xml", path, target="rccl", size="1M:1G")
        assert made.text == path.read_text()
        assert coppice.doctor(path, target="rccl", ranks=16, sizes="1M:1G").ok
        assert coppice.verify(coppice.import_plan(path, topology="mi250")).ok

    def test_pages(self, result: coppice.PlannedResult, cluster: coppice.Topology, tmp_path: Path) -> None:
        for name in ("r.html", "r.svg", "r.dot"):
            assert coppice.report(result, tmp_path / name) == (tmp_path / name).stat().st_size
            coppice.report(cluster, tmp_path / name)

    def test_clusters_joined_and_degraded(self, cluster: coppice.Topology) -> None:
        assert coppice.compose(["2xdgx-a100"], fabric="switch").num_ranks == 16
        mixed = coppice.compose(["dgx-a100", "mi250", "2xdgx-a100"], fabric="rail", name="mixed")
        assert (mixed.name, mixed.hosts) == ("mixed", ("dgx-a1000", "mi250", "dgx-a1001", "dgx-a1002"))
        joined = coppice.compose(
            [coppice.load("star", gpus=4), coppice.load("ring", gpus=3)], port_gb_per_s=25
        )
        assert (joined.num_ranks, len(joined.hosts)) == (7, 2)
        slow = coppice.degrade(
            cluster, nodes={"box0/nic3": "50%"}, links={("box1/gpu0", "box1/nvswitch"): 100}
        )
        assert (
            coppice.bound(slow, "all_gather").algbw_gb_per_s
            < coppice.bound(cluster, "all_gather").algbw_gb_per_s
        )
        fewer = coppice.degrade(cluster, remove=["rank3", ("box0/gpu0", "box0/nvswitch")])
        assert (fewer.num_ranks, fewer.num_links) == (15, cluster.num_links - 6)
        assert coppice.degrade(cluster, remove=[("box0/gpu0", "box0/nvswitch")], one_way=True) != cluster

    def test_arrays_stand_for_sequences(self) -> None:
        weights = np.array([1, 1, 1, 1, 1, 1, 1, 2])
        assert coppice.bound("star", "all_gather", weights=weights) == coppice.bound(
            "star", "all_gather", weights=weights.tolist()
        )
        demands = np.ones((8, 8), dtype=np.int64)
        skewed, plain = (
            coppice.bound("star", "all_to_all", demands=demands),
            coppice.bound("star", "all_to_all"),
        )
        assert skewed.inv_rate == plain.inv_rate
        found = coppice.compare(
            "star", "all_gather", sizes=np.array([1024, 4096]), algorithms=["ring"], jobs=1
        )
        assert found.sizes == (1024, 4096)

    def test_plans_of_mine_are_compared(self, tmp_path: Path) -> None:
        star, sizes, rows = coppice.load("star"), "1K:1M", tmp_path / "rows"
        mine = coppice.plan(star, "all_gather", algorithm="ring")
        coppice.write_plan(mine, tmp_path / "mine.json")
        asked = ["ring", mine, str(tmp_path / "mine.json")]
        found = coppice.compare(star, "all_gather", sizes=sizes, algorithms=asked, jobs=1, results=rows)
        assert set(found.times) == {"ring", "plan 1", "mine.json"}
        for size in found.sizes:
            assert len({by_size[size].time_us for by_size in found.times.values()}) == 1
        again = coppice.compare(star, "all_gather", sizes=sizes, algorithms=asked, jobs=1, results=rows)
        assert again.measurements == found.measurements
        with pytest.raises(InputError, match="a plan of all_reduce to compare, found plan 1 of all_gather"):
            coppice.compare("star", "all_reduce", algorithms=[mine])
        with pytest.raises(InputError, match="a plan on ring of 8 to compare, found plan 1 on star"):
            coppice.compare(coppice.load("ring"), "all_gather", algorithms=[mine])
        found.plot(tmp_path / "picture.svg")
        assert b"mine.json" in (tmp_path / "picture.svg").read_bytes()
        assert coppice.simulate(mine, "1M").write_trace(tmp_path / "trace.json") > 0

    def test_what_there_is_to_choose(self, cluster: coppice.Topology) -> None:
        assert coppice.algorithms("all_gather")[0].name == "forest"
        assert coppice.select("nccl", "all_reduce", "1M", topology=cluster).algorithm
        assert coppice.select("nccl", "all_reduce", 2**20, topology="dgx-h100").algorithm
        [entry] = coppice.design(8, 2, jobs=1)
        assert coppice.plan(entry.recipe.build().to_topology(), "all_gather").loss == 0

    def test_comparisons(self, comparison: coppice.Comparison) -> None:
        rows = comparison.to_table()
        assert {row["size_bytes"] for row in rows} == {1024, 32768, 2**20}
        best = min(
            (row for row in rows if row["size_bytes"] == 1024 and row["time_us"]),
            key=lambda row: row["time_us"],
        )
        assert best["algorithm"] == comparison.best(1024).algorithm  # type: ignore[union-attr]


class TestWrongArguments:
    """Every public function, every argument, values of wrong types: a sentence, never another failure."""

    RIGHT: Mapping[str, tuple[tuple[Any, ...], Mapping[str, Any]]] = {
        "advise": (("star",), {"sizes": "1K", "jobs": 1}),
        "algorithms": ((), {}),
        "bench": (("all_reduce", "1K"), {}),
        "bound": (("star", "all_gather"), {}),
        "claims": (("MPICH",), {}),
        "compile_program": (("PROGRAM",), {}),
        "compare": (("star", "all_gather"), {"sizes": [1024], "algorithms": ["ring"], "jobs": 1}),
        "compose": ((["2xdgx-a100"],), {"fabric": "rail"}),
        "degrade": (("dgx-a100",), {"nodes": {"gpu0": 0.5}, "remove": ["rank3"]}),
        "design": ((4, 2), {"jobs": 1}),
        "doctor": (("<algo/>",), {"target": "rccl"}),
        "explain": (("PLAN",), {}),
        "export": (("PLAN", "rank-order"), {}),
        "import_plan": (("FILE",), {}),
        "load": (("star",), {}),
        "model": (("nccl-2.30",), {}),
        "placement": (("star",), {"axes": "dp=8", "reduce": "dp"}),
        "plan": (("star", "all_gather"), {"ring": False}),
        "plan_groups": (("star",), {"groups": "tp=4,dp=2"}),
        "plan_set": (("star", "all_gather"), {"sizes": "1K"}),
        "read_logs": (("FILE",), {}),
        "read_plan": (("FILE",), {}),
        "read_plan_set": (("FILE",), {}),
        "repair": (("PLAN", "star"), {}),
        "replan": (("star", "all_gather"), {"remove": ["rank3"]}),
        "report": (("PLAN", "OUT"), {}),
        "select": (("nccl", "all_reduce", 1024), {"ranks": 8}),
        "simulate": (("PLAN", 1024), {}),
        "synthesize": (("star", "all_gather"), {"method": "sccl"}),
        "verify": (("PLAN",), {}),
        "write_plan": (("PLAN", "OUT"), {}),
        "write_topology": (("TOPOLOGY", "OUT"), {}),
    }
    WRONG = (
        object(),
        -1,
        0,
        3.5,
        "nonsense",
        b"\xff",
        [],
        ["a"],
        [-1],
        {},
        {"a": 1},
        (),
        None,
        True,
        np.zeros(3),
        2**70,
    )

    def functions(self) -> dict[str, Callable[..., Any]]:
        found = {name: getattr(coppice, name) for name in coppice.__all__}
        return {name: each for name, each in found.items() if callable(each) and not inspect.isclass(each)}

    def test_every_function_is_tried(self) -> None:
        assert set(self.functions()) == set(self.RIGHT)

    @pytest.mark.parametrize(
        "name",
        [pytest.param(each, marks=pytest.mark.slow) if each == "advise" else each for each in sorted(RIGHT)],
    )
    def test_wrong_values(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        function = self.functions()[name]
        files = {
            "PLAN": coppice.plan("star", "all_gather", ring=False),
            "TOPOLOGY": coppice.load("star"),
            "FILE": "missing.file",
            "OUT": "out.html",
            "PROGRAM": coppice.ChunkProgram("all_reduce", ranks=1),
        }
        args, kwargs = self.RIGHT[name]
        args = tuple(files.get(each, each) if isinstance(each, str) else each for each in args)
        parameters = [
            each.name
            for each in inspect.signature(function).parameters.values()
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        refused = 0
        for position, parameter in enumerate(parameters):
            for value in self.WRONG:
                positional, named = list(args), dict(kwargs)
                if position < len(positional):
                    positional[position] = value
                else:
                    named[parameter] = value
                try:
                    function(*positional, **named)
                except coppice.CoppiceError:
                    refused += 1
        assert refused >= 2 * len(parameters)

    @pytest.mark.parametrize("name", sorted(RIGHT))
    def test_wrong_names(self, name: str) -> None:
        with pytest.raises(coppice.InputError):
            self.functions()[name](*self.RIGHT[name][0], **{**self.RIGHT[name][1], "no_such_option": 1})

    @pytest.mark.parametrize(
        ("collective", "more"),
        [
            ("all_gahter", {}),
            (3, {}),
            ("broadcast", {"root": "0"}),
            ("all_gather", {"weights": 3}),
            ("all_gather", {"weights": [1, 2.5]}),
        ],
    )
    def test_problems_are_checked_where_they_are_made(
        self, cluster: coppice.Topology, collective: Any, more: dict[str, Any]
    ) -> None:
        with pytest.raises(coppice.InputError):
            coppice.Problem(cluster, collective, **more)
        with pytest.raises(coppice.InputError, match=r"coppice\.load"):
            coppice.Problem(BOX, "all_gather")  # type: ignore[arg-type]

    @pytest.mark.parametrize("nothing", ["", " \n"])
    def test_nothing_is_no_topology(self, nothing: str) -> None:
        with pytest.raises(coppice.InputError, match="found nothing"):
            coppice.load(nothing)

    def test_a_script_needs_no_guard(self, tmp_path: Path) -> None:
        """Processes do not read the script that starts them: without a guard each would start processes of its own."""
        script = tmp_path / "script.py"
        script.write_text(
            "import coppice\n"
            "print('begins')\n"
            "found = coppice.compare('star', 'all_gather', sizes='1K,1M', algorithms=['forest', 'ring'], jobs=2)\n"
            "print(sorted(found.times))\n"
        )
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.stdout, done.stderr) == ("begins\n['forest', 'ring']\n", "")

    def test_messages_name_no_flags(self, cluster: coppice.Topology) -> None:
        with pytest.raises(coppice.InputError, match="`trees`"):
            coppice.plan(cluster, "all_to_all", trees=2)
        with pytest.raises(coppice.InputError, match="did you mean `trees`"):
            coppice.plan(cluster, "all_gather", tree=2)

    def test_help_is_where_messages_say(self, cluster: coppice.Topology) -> None:
        with pytest.raises(coppice.InputError, match=r"see help\(coppice\.plan\)"):
            coppice.plan(cluster, 4)  # type: ignore[arg-type]
        with pytest.raises(coppice.InputError, match=r"see help\(coppice\.tuning\.building\.settings_text\)"):
            settings_text(4)  # type: ignore[arg-type]


class TestShown:
    def test_short(
        self, result: coppice.PlannedResult, cluster: coppice.Topology, comparison: coppice.Comparison
    ) -> None:
        """What verbs return, and everything public that hangs on it, prints in fewer than 400 characters."""
        timeline = coppice.simulate(result, "1M")
        exported = coppice.export(coppice.plan("mi250", "all_gather"), "msccl-xml", target="rccl", size="all")
        shown: list[Any] = [
            result, cluster, comparison, timeline, exported, coppice.explain(result), coppice.verify(result),
            coppice.doctor(exported.text, target="rccl"), coppice.select("nccl", "all_reduce", 1024, ranks=8),
            coppice.plan("star", "all_to_all"), coppice.plan("torus", "all_gather", ring=False),
            *coppice.design(8, 2, jobs=1), *coppice.algorithms(),
        ]  # fmt: skip
        seen: set[int] = set()
        while shown:
            each = shown.pop()
            if id(each) in seen or isinstance(
                each, (str, bytes, int, float, np.ndarray, Fraction, type, enum.Enum, dict, list, tuple)
            ):
                continue
            seen.add(id(each))
            if not type(each).__module__.startswith("coppice"):
                continue
            assert len(repr(each)) < 400, f"{type(each)}: {repr(each)[:600]}"
            for name in dir(each):
                if not name.startswith("_") and name not in ("transposed", "critical_path"):
                    try:
                        inner = getattr(each, name)
                    except coppice.CoppiceError:
                        continue
                    shown.append(inner)
        assert len(seen) > 40

    def test_notebooks(
        self, result: coppice.PlannedResult, cluster: coppice.Topology, comparison: coppice.Comparison
    ) -> None:
        for each in (result, cluster, comparison, result.plan, result.bound, coppice.simulate(result, "1M")):
            html = each._repr_html_()
            assert html is not None
            assert html.count("<svg") == 1
            assert "<dl>" in html
        large = coppice.load("dgx-a100", boxes=64)
        assert "<svg" not in (large._repr_html_() or "")

    def test_the_tour_names_what_there_is(self) -> None:
        for name in self.functions_named():
            assert (
                f"coppice.{name}(" in (coppice.__doc__ or "")
                or f":func:`{name}`" in (coppice.__doc__ or "")
                or name == "read_plan"
            )

    def functions_named(self) -> list[str]:
        return [name for name in TestWrongArguments.RIGHT if name != "write_plan"]

    def test_every_public_function_has_an_example(self) -> None:
        for name, function in TestWrongArguments().functions().items():
            documented = getattr(function, "main_function", function)
            words = inspect.getdoc(documented) or ""
            assert "Args:" in words or not inspect.signature(documented).parameters, name
            assert "Raises:" in words, name

    def test_commands_have_their_verb(self) -> None:
        """What a command does can be done from Python: by a function of the same name, or by what is listed here."""
        elsewhere = {
            "topology": "load",
            "compile": "compile_program",
            "import": "import_plan",
            "logs": "read_logs",
        }
        rooms = {
            "model": "simulation",
            "probe": "run",
            "lab": "run",
            "switch": "innetwork",
            "diagnose": "diagnosis",
            "schema": "outputs",
        }
        for command in COMMANDS:
            if command not in rooms:
                assert elsewhere.get(command, command) in coppice.__all__


def test_former_names_of_options_are_taken_in_python_too() -> None:
    words: dict[str, Any] = {"topology": "dgx-a100", "parallel": "tp=2,pp=2,dp=2", "global_batch": 16}
    estimate: Any = coppice.train.estimate
    now = estimate("gpt-7.5b", **words, policy="gpipe+ddp")
    with pytest.warns(FutureWarning, match="is now `policy`"):
        assert estimate("gpt-7.5b", **words, order="gpipe", overlap="ddp").seconds == now.seconds
    with pytest.warns(FutureWarning, match="`overlap` is now `policy`"):
        assert estimate("gpt-7.5b", **words, policy="gpipe", overlap="ddp").seconds == now.seconds
    plain = estimate("gpt-7.5b", **words)
    with pytest.warns(FutureWarning):
        assert estimate("gpt-7.5b", **words, order="none").seconds == plain.seconds
    with pytest.raises(InputError, match="estimate has no argument `oder`"):
        estimate("gpt-7.5b", **words, oder="gpipe")
