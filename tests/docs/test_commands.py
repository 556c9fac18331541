"""Every command that README, CONTRIBUTING or a page of docs shows runs in a test as printed, or has a reason why not.

A command is a line of an indented or fenced block that starts with a program. Those of pages that show output are run
by the test of that page, which compares it; all others are run here, page by page and in order. What needs a launcher,
root or hardware is parsed: the command and its options exist.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from coppice.cli import app
from support.pages import FOLLOWED, coppice, examples, page_name, page_text, without_times, working_in
from support.pages import PAGES as ALL_PAGES
from support.paths import ROOT
from support.reader_samples import XML_DIRECT

PAGES = [page_name(path) for path in ALL_PAGES]
PROGRAMS = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:(?:coppice|torchrun|mpirun|make|python3?|tail|for) |export [A-Z])"
)

COMPARED = {
    "autolrs.md": "test_autolrs_page.py",
    "blink.md": "test_synthesis_pages.py",
    "claims.md": "../test_claims.py",
    "comparison.md": "test_comparison_pages.py",
    "design.md": "test_design_page.py",
    "jobs.md": "test_sessions.py",
    "language.md": "test_language_page.py",
    "placement.md": "test_sessions.py",
    "selection.md": "test_sessions.py",
    "simulation.md": "test_sessions.py",
    "synthesis.md": "test_synthesis_pages.py",
    "synthesis-milp.md": "test_synthesis_pages.py",
    "synthesis-search.md": "test_synthesis_pages.py",
}
"""Pages all of whose commands are run by a test of their own, with their output."""

SHOWN = ("iteration.md", "json.md", "tuning.md")
"""Pages whose commands with output are run by test_sessions.py, which compares it; the others are run here."""

COMPARED_HERE = {"README.md": 4, "in-network.md": 10}
"""Pages whose commands are compared with the output that they show, and how many show some."""

_RUNTIMES = "test_runtimes_page.py runs it"
REASONS = {
    r"make ": "sets up a developer's environment",
    r"(\S+=\S+ )*(torchrun|mpirun)\b": "needs a launcher and as many processes",
    r"(COPPICE|NCCL)_\S+=": "stands for the user's own program",
    r"export NCCL_(TUNER|NET|ENV)_PLUGIN": "sets variables of the shell",
    r"for rank in": "starts a program of the page, which test_shared_memory_page.py does",
    r"coppice lab (up|run|down)": "needs root and network namespaces; tests/run/lab does it",
    r"coppice switch serve": "runs until it is stopped; tests/innetwork/test_serving.py starts it",
    r"coppice switch xdp": "needs root and runs until it is stopped; test_xdp_network.py starts it",
    r"coppice tune (sweep|check)": "measures a library on a cluster",
    r"coppice tune (fit puts.jsonl|export puts.csv)": "goes on from a sweep; test_put_signal_tuning.py does, too",
    r"coppice tune plugin build": "needs a compiler; test_plugin.py and its neighbours build each",
    r"coppice tune plugin settings .*_PLUGIN=": "needs the libraries of the lines before; test_settings.py writes some",
    r"coppice plan measured.json": "plans what the line before measures",
    r"coppice train import trace": "reads what a profiler wrote; test_train_jobs.py has one",
    r"(coppice train measure|python benchmarks/device_table.py)": "measures the machine; test_measured.py does",
    r"coppice train lr-compare": "trains for minutes; tests/training/test_lr_comparing.py prints it",
    r"coppice train lr-report": "reads what a training wrote; test_autolrs_page.py has one",
    r"coppice compare dgx-h100 --boxes 4 --collective all_gather --relay-gpus --sizes 1K:4G --plot": "takes minutes",
    r"coppice compare +dgx-h100 --boxes 4 --collective all_reduce --sizes 1K:4G$": "takes minutes",
    r"coppice report plan.json -o report.html --size 1G --compare": "takes minutes",
    r"coppice doctor (table.csv|graph.xml|topo.xml|rings.env|rules.conf|mpich.env) ": "judges the user's own files",
    r"coppice plan mi250 --boxes 2 --collective all_reduce": _RUNTIMES,
    r"coppice export plan.json --to msccl-xml --target rccl -o": _RUNTIMES,
    r"coppice (doctor algo.xml --target rccl --num-ranks 32|verify algo.xml|import algo.xml)": _RUNTIMES,
    r"coppice export cluster.json --to rank-order": "is for 128 ranks of the user's own",
    r"coppice export mi300x .* --option times=measured.csv": "reads the user's own measurements",
}
"""Commands that are only parsed, and why."""


FAULTS = (
    "coppice doctor plan.mscclpp.json --target mscclpp --num-ranks 16 --size 1M:2G",
    "coppice doctor examples/ompi-advice.conf --target ompi-rules --fact shapes=2x16,1x8",
    "coppice doctor examples/mpich-advice.env --target mpich-env --fact shapes=2x12",
)
"""Commands that show what is wrong with a file, with exit code 1."""


def commands(page: str) -> list[str]:
    """The commands that a page shows, without comments."""
    found, fence = [], None
    for line in page_text(page).splitlines():
        if line.startswith("```"):
            fence = line[3:] or "?" if fence is None else None
        elif fence in ("sh", "bash", "?") or (fence is None and re.match(r" {4}\S", line)):
            found.append(line.strip())
        elif fence == "console" and line.startswith("$ "):
            found.append(line[2:])
    return [re.sub(r"\s{2,}# .*", "", line).strip() for line in found if PROGRAMS.match(line)]


def examples_of_help() -> list[str]:
    """The examples that docs/cli.md repeats from the help of commands."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", page_text("cli.md"), re.DOTALL | re.MULTILINE)
    return [line for block in fenced for line in block.splitlines() if PROGRAMS.match(line)]


def left(page: str) -> list[str]:
    """Commands of a page that are run here."""
    compared = {each.command for each in examples(page)} if page in SHOWN else set()
    return [each for each in commands(page) if each not in compared and reason(each) is None]


def reason(command: str) -> str | None:
    return next((why for pattern, why in REASONS.items() if re.match(pattern, command)), None)


def parsed(command: str) -> None:
    """Parse a command's words behind `coppice`, without running it; fails where an option does not exist."""
    found = re.search(r"\bcoppice (.*)", command)
    if found is None:
        return
    words = shlex.split(found[1].partition(" | ")[0].partition(" > ")[0])
    each: Any = typer.main.get_command(app)
    while hasattr(each, "commands") and words and words[0] in each.commands:
        each = each.get_command(None, words.pop(0))
    with each.make_context("coppice", [*words]):
        pass


def run_here() -> Iterator[Any]:
    """Pages with commands that this file runs."""
    for page in PAGES:
        if page not in COMPARED and page not in FOLLOWED and page != "cli.md" and left(page):
            yield page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that a reader has."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in ("nccl.xml", "dump.xml"):
        (folder / name).write_bytes(XML_DIRECT)
    with working_in(folder):
        for words in (
            "topology import dgx-a100 --boxes 2 -o cluster.json",
            "topology import dgx-a100 --boxes 2 -o cluster.yaml",
            "plan examples/two-dgx-a100.json --collective all_reduce -o plan.json",  # as `make demo` does
        ):
            assert coppice(*words.split()).exit_code == 0
    return folder


@pytest.mark.parametrize("page", [*run_here()])
def test_commands_run_as_printed(
    page: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in one folder; what the pages of ``COMPARED_HERE`` show is what is printed."""
    monkeypatch.setenv("COPPICE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(files, tmp_path, symlinks=True, dirs_exist_ok=True)
    shown = {each.command: each.shown for each in examples(page)} if page in COMPARED_HERE else {}
    with working_in(tmp_path):
        for command in left(page):
            if re.match(r"(\.venv/bin/)?coppice ", command):
                done = coppice(*shlex.split(command)[1:])
                assert done.exit_code == (1 if command in FAULTS else 0), f"{command}\n{done.output}"
                if command in shown:
                    assert without_times(done.stdout) == without_times(shown[command]), command
            else:
                shell = subprocess.run(command, shell=True, capture_output=True, text=True)
                assert shell.returncode == 0, f"{command}\n{shell.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_parse(page: str) -> None:
    """Those that are not run, too."""
    for command in examples_of_help() if page == "cli.md" else commands(page):
        parsed(command)


def test_every_reason_has_a_command() -> None:
    shown = [command for page in PAGES for command in commands(page)]
    for pattern in REASONS:
        assert any(re.match(pattern, command) for command in shown), f"no command is left out by {pattern}"
    assert set(FAULTS) <= set(shown)


def test_there_are_commands() -> None:
    assert len(commands("README.md")) >= 10
    assert len(examples_of_help()) >= 60
    for page, test in COMPARED.items():
        assert commands(page), page
        assert (ROOT / "tests" / "docs" / test).is_file()
    for page, count in COMPARED_HERE.items():
        assert len({each.command for each in examples(page)} & set(left(page))) >= count, page
    for page in SHOWN:
        assert f'("{page}", ' in (ROOT / "tests" / "docs" / "test_sessions.py").read_text()
        assert {each.command for each in examples(page)} <= set(commands(page)), page
