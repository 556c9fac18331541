"""Documentation is true: docstring examples run, generated pages are current, the checker in docs checks."""

from __future__ import annotations

import doctest
import importlib
import linecache
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.pages import PAGES, page_name

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "coppice"
DOCS = ROOT / "docs"
NEEDED = {"torch": "torch", "put_signal.joined": "triton"}
"""What modules with a word in their names need."""


def module_names() -> list[str]:
    paths = [path.relative_to(SOURCE.parent).with_suffix("") for path in sorted(SOURCE.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names = [name for name in names if not name.endswith("__main__")]
    missing = [word for word, package in NEEDED.items() if find_spec(package) is None]
    return [name for name in names if not any(word in name for word in missing)]


def module_names_with_examples() -> list[str]:
    def text(name: str) -> str:
        path = SOURCE.parent.joinpath(*name.split("."))
        return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()

    return [name for name in module_names() if ">>> " in text(name)]


@pytest.mark.parametrize("name", module_names_with_examples())
def test_docstring_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        linecache, "checkcache", lambda _=None: None
    )  # a debugger, before each, asks for all files
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(name) for name in module_names()]
    assert sum(len(test.examples) for module in modules for test in finder.find(module)) > 50


@pytest.mark.parametrize(
    "script", ["generate.py", "outputs.py", "architecture.py", "survey.py", "scheduling.py"]
)
def test_generated_pages_are_current(script: str) -> None:
    done = subprocess.run([sys.executable, DOCS / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"a page that docs/{script} makes is stale: run `make docs`. {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, place in links(page):
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name} links to {target}, which does not exist"
        assert not place or place in headings(found), (
            f"{page.name} links to {target}#{place}: no such heading"
        )


def test_every_page_is_reached_from_the_index() -> None:
    reached: set[Path] = set()
    todo = [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += [(page.parent / target).resolve() for target, _ in links(page) if target]
    assert not {page_name(page) for page in PAGES} - {page_name(page) for page in reached}


def links(page: Path) -> list[tuple[str, str]]:
    """Links of a page into this repository: a file, empty for the page itself, and a heading of it or nothing."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    return [each for each in found if not each[0].startswith(("http://", "https://"))]


@cache
def headings(page: Path) -> set[str]:
    """What links call the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def test_checker_in_plan_format(tmp_path: Path) -> None:
    """The program shown in docs/plan-format.md counts the rate that the planner claims."""
    from fractions import Fraction

    from coppice import Collective, Problem, load, plan, write_plan

    program = re.search(r"```python\n(.*?)```", (DOCS / "plan-format.md").read_text(), re.DOTALL)
    assert program is not None
    for preset, boxes, collective in (
        ("dgx-a100", 2, Collective.ALL_GATHER),
        ("mi250", 1, Collective.ALL_REDUCE),
        ("dgx-a100", 2, Collective.REDUCE_SCATTER),
    ):
        result = plan(Problem(topology=load(preset, boxes=boxes), collective=collective), ring=False)
        write_plan(result.plan, tmp_path / "plan.json")
        command = [sys.executable, "-c", program[1], str(tmp_path / "plan.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert Fraction(done.stdout.split(":")[1].strip()) == result.algbw_gb_per_s


@pytest.mark.parametrize("name", ["dgx-a100", "mi250", "random-balanced"])
def test_checker_of_witnesses_in_plan_format(name: str, tmp_path: Path) -> None:
    """The programs shown in docs/plan-format.md, one after the other, find rate and bound equal."""
    from coppice import Collective, Problem, load, plan, write_plan

    programs = re.findall(r"```python\n(.*?)```", (DOCS / "plan-format.md").read_text(), re.DOTALL)
    result = plan(Problem(topology=load(name), collective=Collective.ALL_REDUCE), ring=False)
    write_plan(result.plan, tmp_path / "plan.json")
    command = [sys.executable, "-c", "\n".join(programs[:2]), str(tmp_path / "plan.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rate, limit = (line.split(":")[1].strip() for line in done.stdout.splitlines())
    assert rate == limit == str(result.algbw_gb_per_s)


@pytest.mark.parametrize("trees", [1, 2])
def test_checker_of_whole_trees_in_plan_format(trees: int, tmp_path: Path) -> None:
    """The first and the third program of docs/plan-format.md find rate and bound equal, and refuse a better bound."""
    from dataclasses import replace
    from fractions import Fraction

    from coppice import Collective, Problem, plan, write_plan
    from coppice.bounds.result import LinkRange
    from coppice.schedule.plan import Plan
    from coppice.topology.model import Link, Node, NodeKind, Topology

    nodes = [*(Node(id=f"g{i}") for i in range(3)), Node(id="sw", kind=NodeKind.SWITCH)]
    links = [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(1), duplex=False) for i in range(3)]
    links += [Link(src="sw", dst=f"g{i}", gb_per_s=Fraction(9, 2), duplex=False) for i in range(3)]
    problem = Problem(Topology.of("star", nodes, links), Collective.ALL_GATHER)
    result = plan(problem, trees=trees, ring=False)
    whole = result.bound.whole_trees
    assert whole is not None
    assert len(whole.cases) == 1
    decided = (LinkRange(link=0, most=0, below=1, above=2), *whole.cases, *whole.cases)
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "plan-format.md").read_text(), re.DOTALL)

    def checked(made: Plan) -> subprocess.CompletedProcess[str]:
        write_plan(made, tmp_path / "plan.json")
        command = [sys.executable, "-c", programs[0] + programs[2], str(tmp_path / "plan.json")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for cases in (whole.cases, decided):
        proved = replace(result.bound, whole_trees=replace(whole, cases=cases))
        done = checked(replace(result.plan, bound=proved))
        rate, limit = (line.split(":")[1].strip() for line in done.stdout.splitlines())
        assert rate == limit == str(result.algbw_gb_per_s)
    better = replace(whole, inv_rate=whole.inv_rate * Fraction(101, 100))
    assert checked(replace(result.plan, bound=replace(result.bound, whole_trees=better))).returncode == 1


def test_readme_program_runs(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```.*?```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    command = [sys.executable, "-c", found[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == found[2]
