"""Manners of the whole command line: completion, a quick help, one way to write collectives and sizes."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec import Struct
from typer.testing import CliRunner

from cli.conftest import Run
from coppice.cli import COMMANDS, GROUPS, app
from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.options.measuring import SteppedSizes
from coppice.cli.output import print_fields
from coppice.cli.tune.sweep import chosen_collectives
from coppice.collectives import Collective
from coppice.design.search.workload import CollectiveWorkload
from coppice.errors import InputError
from coppice.options.shared import BoxesOption, JsonOption

SPELLINGS = (
    "all_reduce",
    "all-reduce",
    "allreduce",
    "AllReduce",
    "ALL_REDUCE",
    "ncclAllReduce",
    "MPI_Allreduce",
)

HEAVY = ("numpy", "highspy", "scipy", "torch", "matplotlib", "networkx", "pandas", "coppice._core")
"""What the list of commands needs none of."""


@cache
def commands() -> tuple[tuple[str, Any], ...]:
    """Every command by its words, with what typer made of it: once, as it takes a third of a second."""

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
            return
        for name in list(inner):
            yield from below(f"{words} {name}".strip(), inner.get(name))

    return tuple(below("", typer.main.get_command(app)))


def completed(words: str, shell: str = "bash") -> list[str]:
    """What a shell offers for the last word."""
    last = len(words.split(" ")) - 1
    env = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(last),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_COPPICE_COMPLETE": f"complete_{shell}",
    }
    return CliRunner().invoke(app, [], env=env, prog_name="coppice").stdout.split()


def loaded(*arguments: str) -> set[str]:
    """Names of the modules that a command loads."""
    program = (
        "import sys\nfrom coppice.cli import main\nsys.argv = ['coppice', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert "Usage: coppice" in done.stdout
    return set(done.stderr.split())


def test_commands_complete() -> None:
    assert completed("coppice pla") == ["plan", "placement"]
    assert completed("coppice desi") == ["design"]
    assert set(completed("coppice ")) == set(COMMANDS)
    assert completed("coppice topology sh") == ["show"]
    assert completed("coppice design comp") == ["compare"]
    assert "--collective" in completed("coppice plan x --col")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("coppice plan dgx-h", "dgx-h100"),
        ("coppice compare dgx-h", "dgx-h100"),
        ("coppice plan x --collective all_r", "all_reduce"),
        ("coppice bench all_r", "all_reduce"),
        ("coppice tune sweep --collective broadcast,all_r", "broadcast,all_reduce"),
        ("coppice algorithms --collective all_r", "all_reduce"),
        ("coppice plan x --algorithm rabens", "rabenseifner"),
        ("coppice compare x -a forest,rabens", "forest,rabenseifner"),
        ("coppice simulate plan.json --model msc", "msccl"),
    ],
)
def test_values_complete(words: str, offered: str) -> None:
    assert offered in completed(words)


def test_other_shells_complete() -> None:
    assert "plan" in completed("coppice pl", "fish")
    assert any("plan" in word for word in completed("coppice pl", "zsh"))


def test_completion_can_be_installed() -> None:
    shown = CliRunner().invoke(app, ["--help"], prog_name="coppice").stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown


def test_help_of_the_program_loads_no_command() -> None:
    """Summaries stand in a table of their own."""
    modules = loaded("--help")
    assert not modules & set(HEAVY)
    assert not modules & {place.attribute.partition(":")[0] for place in COMMANDS.values()}


def test_help_of_commands_loads_no_solver_and_no_drawing() -> None:
    """All of them in one process: none loads what only some runs need."""
    program = (
        "import sys\nfrom coppice.cli import COMMANDS, command_named\n"
        "for name in COMMANDS:\n    command_named(name)\nprint('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"highspy", "scipy", "torch", "matplotlib", "networkx", "pandas", "mpi4py"}
    assert not set(done.stdout.split()) & heavy


@pytest.mark.parametrize("name", SPELLINGS)
def test_collectives_are_known_by_every_spelling(name: str) -> None:
    assert Collective(name) is Collective.ALL_REDUCE
    assert Collective.named(name) is Collective.ALL_REDUCE
    assert chosen_collectives(f"{name},broadcast") == [Collective.ALL_REDUCE, Collective.BROADCAST]
    workload = CollectiveWorkload(collective=name, size_bytes=1, alpha_us=1, node_gb_per_s=1)  # type: ignore[arg-type]
    assert workload.collective is Collective.ALL_REDUCE


def test_commands_take_every_spelling(run: Run, star: Path) -> None:
    found = {run("bound", star, "--collective", name).out for name in SPELLINGS}
    assert len(found) == 1
    assert "all_reduce" in found.pop()
    assert run("algorithms", "-c", "AllGather").out == run("algorithms", "-c", "all_gather").out
    picked = run("select", "-l", "mpich", "-c", "all-reduce", "--ranks", "8", "--size", "1K", "--json")
    assert picked.json["collective"] == "all_reduce"


def test_a_collective_that_is_none_is_refused_in_a_sentence(run: Run, star: Path) -> None:
    refused = run("plan", star, "-c", "all_redcue")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: there is no collective 'all_redcue': did you mean 'all_reduce'?\n"
    with pytest.raises(InputError, match="found 'all_redcue'"):
        chosen_collectives("broadcast,all_redcue")


def test_exports_take_every_spelling(run: Run, tmp_path: Path, star: Path) -> None:
    texts = set()
    for number, name in enumerate(("all_reduce", "AllReduce")):
        target = tmp_path / f"{number}.conf"
        options = ["--option", f"collectives={name}", "--option", "sizes=1K", "--option", "jobs=1"]
        done = run("export", star, "--to", "ompi-rules", *options, "-o", target)
        assert done.code == 0, done.err
        texts.add(target.read_text())
    assert len(texts) == 1


def test_json_plan_files_hold_one_spelling(run: Run, star: Path) -> None:
    shown = run("plan", star, "-c", "AllReduce", "--json")
    assert json.loads(shown.out)["collective"] == "all_reduce"


def test_every_command_prints_json() -> None:
    """But the one that runs a program of the user, whose output goes to standard output."""
    found = {
        words for words, command in commands() if "as_json" not in {each.name for each in command.params}
    }
    assert found == {"lab run"}


def test_json_of_commands_that_write_files(run: Run, tmp_path: Path, star: Path) -> None:
    plan, xml, page = tmp_path / "plan.json", tmp_path / "algo.xml", tmp_path / "report.html"
    assert run("plan", star, "-c", "all_gather", "-o", plan).code == 0
    exported = run("export", plan, "--to", "msccl-xml", "--target", "msccl", "-o", xml, "--json")
    assert (exported.json["to"], exported.json["output"], exported.err) == ("msccl-xml", str(xml), "")
    assert run("import", xml, "--json").json["collective"] == "all_gather"
    shown = run("report", plan, "-o", page, "--json").json
    size = page.stat().st_size
    head = {"format": "coppice-report-output", "version": 1}
    assert shown == {**head, "output": str(page), "output_bytes": size, "bytes": size}
    refused = run("export", plan, "--to", "msccl-xml", "--target", "msccl", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "-o algo.xml" in refused.err


SIZED = {
    "simulate": "size",
    "compare": "sizes",
    "select": "sizes",
    "doctor": "sizes",
    "bench": "listed",
    "tune sweep": "listed",
    "design show": "size",
}
"""Commands that take several sizes, with the name of the parameter."""


def test_sizes_are_given_alike() -> None:
    for words, command in commands():
        if words in SIZED:
            (option,) = [each for each in command.params if each.name == SIZED[words]]
            assert {"--size", "--sizes", "-s"} <= set(option.opts), words


def test_one_size_is_asked_for_where_only_one_makes_sense(run: Run, tmp_path: Path, star: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", star, "-o", plan).code == 0
    for words in (
        ["report", plan, "-o", tmp_path / "r.html"],
        ["export", plan, "--to", "html"],
        ["design", "--ranks", "8", "--degree", "2"],
        ["select", "-l", "mpich", "--ranks", "8", "--why"],
    ):
        refused = run(*words, "--size", "1K:4K")
        assert refused.code == 2
        assert "one" in refused.err
        assert "give one" in refused.err
        assert "1K:4K" in refused.err


def test_select_takes_a_range_of_sizes(run: Run) -> None:
    words = ["select", "--library", "open-mpi", "--collective", "all_reduce", "--ranks", "48"]
    lines = run(*words, "--size", "1K:1M:32,3G").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["size", "1K", "32K", "1M", "3G"]
    single = run(*words, "--size", "32K", "--json").json
    several = run(*words, "--sizes", "1K:1M:32", "--json").json["selections"]
    assert isinstance(several, list)
    head = {"format": "coppice-select-output", "version": 1}
    assert {**several[1], **head} == single
    assert several[1]["version"] == single["library_version"]  # of a list the former name is left


def test_measured_sizes_may_be_listed() -> None:
    assert SteppedSizes(listed="1K:4K,100").sizes() == [100, 1024, 2048, 4096]
    assert SteppedSizes(listed="1K:64K:4").steps() == (1024, 65536, 4)
    assert SteppedSizes(first="1K", last="20K", factor=4).steps() == (1024, 16384, 4)
    with pytest.raises(InputError, match="rise by one factor"):
        SteppedSizes(listed="1K,2K,5K").steps()
    with pytest.raises(InputError, match="--sizes of 1 byte or more"):
        SteppedSizes(listed="0").sizes(least=1)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_long_values_hang_below_their_beginning_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    fields = [("short", "value"), ("long name", words), ("unbreakable", "x" * 100)]
    piped = io.StringIO()
    print_fields("Title", fields, file=piped)
    assert piped.getvalue().splitlines()[2] == f"  long name    {words}"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Terminal()
    print_fields("Title", fields, file=shown)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).splitlines()
    assert lines[1] == "  short        value"
    wrapped = lines[2:-1]
    assert len(wrapped) > 3
    assert all(len(line) <= 80 for line in wrapped)
    assert wrapped[0].startswith("  long name    word0 ")
    assert all(line.startswith(" " * 15 + "word") for line in wrapped[1:])
    assert " ".join(line[15:] for line in wrapped) == words
    assert lines[-1] == f"  unbreakable  {'x' * 100}"


class Wished(Struct, frozen=True, kw_only=True):
    colour: str = "red"
    number: int = 3


def test_options_stand_in_the_given_order_and_reach_the_object() -> None:
    got: list[object] = []

    @with_options("topology as_json ... rates boxes")
    def command(where: TopologyOptions, *, size: int = 1, as_json: JsonOption = False) -> None:
        """Its help."""
        got.extend([where, size, as_json])

    assert list(inspect.signature(command).parameters) == ["topology", "as_json", "size", "rates", "boxes"]
    assert inspect.getdoc(command) == "Its help."
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["ring", "--boxes", "2", "--json", "--size", "7"])
    assert done.exit_code == 0, done.output
    assert got == [TopologyOptions(topology="ring", boxes=2), 7, True]
    assert CliRunner().invoke(app, ["ring", "--ranks", "0"]).exit_code == 2  # not offered


def test_what_a_command_declares_itself_takes_precedence() -> None:
    got: list[object] = []

    @with_options("topology boxes colour")
    def command(where: TopologyOptions, wish: Wished, *, boxes: BoxesOption = 5) -> None:
        got.extend([where.boxes, boxes, wish])

    command(topology="ring", colour="blue", boxes=5)
    assert got == [None, 5, Wished(colour="blue")]


def test_an_order_leaves_nothing_out() -> None:
    with pytest.raises(TypeError, match="found no size"):

        @with_options("topology")
        def command(where: TopologyOptions, *, size: int = 1) -> None:
            del where, size

    with pytest.raises(KeyError, match="nonsense"):

        @with_options("topology nonsense")
        def other(where: TopologyOptions) -> None:
            del where


def test_sizes_in_steps() -> None:
    assert SteppedSizes(first="1K", last="20K", factor=4).sizes() == [1024, 4096, 16384]
    assert SteppedSizes(first="0", last="1G").sizes() == [0]
    with pytest.raises(InputError, match="exchange them"):
        SteppedSizes(first="2K", last="1K").sizes()
    with pytest.raises(InputError, match="-b of 1 byte or more"):
        SteppedSizes(first="0").sizes(least=1)


def test_the_program_is_on_one_screen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").out.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) < 80
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    assert [line.split()[0] for line in lines if re.match(r"  \w+  ", line)] == listed
    assert all(f"{title}:" in lines for title in GROUPS)
