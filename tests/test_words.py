"""Names, first sentences, options and documentation use words of the field, none that only this code knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from coppice.cli import COMMANDS, command_named
from coppice.export import FORMATS
from support.pages import PAGES

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "coppice"


class PrivateWord(NamedTuple):
    """A word that means something here alone."""

    pattern: str  # Of whole words
    field: str  # What the field says
    allowed: tuple[
        tuple[str, str], ...
    ] = ()  # Where it is the field's own word (module or page), and as what


EVERYWHERE = (
    PrivateWord("twins?", "reference, emulated device, schedule fuzzer, emulator, peer channel"),
    PrivateWord(
        "lanes?",
        "thread, communicator, tree, vector width, backend path, queue",
        (
            ("innetwork/*", "values of a key in SwitchAgg's packets, as its paper has them"),
            ("docs/in-network.md", "the same"),
            ("docs/put-signal.md", "the earlier name of an option, which is still read"),
        ),
    ),
    PrivateWord("(stand|stands|standing|stood) still", "deadlock, pause, wait"),
    PrivateWord("landings?", "receive buffer, arrival"),
    PrivateWord("stretch(es)?", "interval, segment"),
    PrivateWord("strangers?", "unknown sender, unrelated job, anybody"),
    PrivateWord("patience", "give-up timeout"),
    PrivateWord("misled", "proxy step deadlock"),
)

# Also in prose of the documentation, where they are plain English.
IN_NAMES_AND_SENTENCES = (
    PrivateWord("told|tells?", "given, reported, published"),
    PrivateWord("asked", "requested, options, detected"),
    PrivateWord("says?|said", "reports, prints, specifies"),
    PrivateWord("hears?|heard", "receives, is called with"),
    PrivateWord(
        "beside", "next to, against, concurrently with", (("report/topology/*", "places in a drawing"),)
    ),
)

# In models and runs of training steps
TRAINING = (
    PrivateWord("carriers?|enforcers?|carried out|carry out", "executor, execute"),
    PrivateWord("motifs?", "collective phase"),
    PrivateWord("palettes?", "template table"),
    PrivateWord("pools?|pooled", "gradient buffer, bucket"),
    PrivateWord("row of layers|rows of layers", "sequential model"),
    PrivateWord("sums? of (the )?(gradients|activations)", "all-reduce"),
    PrivateWord("shares? out|shared out|sharing out", "shard"),
    PrivateWord("(network )?line job|lined|network lines?", "in-order queue"),
    PrivateWord("parallel sections?", "tensor-parallel module"),
    PrivateWord("kept bytes|bytes kept", "activation bytes"),
    PrivateWord("at once", "concurrently, co-scheduled, synchronous"),
    PrivateWord("no (order|policy|plan)s? can beat", "lower bound"),
)

# What has another meaning in the field where it stood: races are between accesses to data.
RACES = PrivateWord("races?|racing|raced", "matchup")


class Found(NamedTuple):
    """A text that readers see first."""

    where: str
    what: str
    text: str


def words_of(name: str) -> str:
    """The words of a name: ``TransportProfile`` and ``transport_profile`` are `transport profile`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("/", " ").lower()


def public(node: ast.AST, where: str) -> Iterator[Found]:
    """Names of public classes and functions, and their first sentences."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not child.name.startswith("_"):
            yield Found(where, child.name, words_of(child.name))
            yield Found(where, child.name, (ast.get_docstring(child) or "").partition("\n")[0])
            if isinstance(child, ast.ClassDef):
                yield from public(child, where)


@cache
def source() -> tuple[Found, ...]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        where, tree = str(path.relative_to(SOURCE)), ast.parse(path.read_text())
        found.append(Found(where, "the module", words_of(where.removesuffix(".py"))))
        found.append(Found(where, "its head", (ast.get_docstring(tree) or "").partition("\n")[0]))
        found += public(tree, where)
    return tuple(found)


@cache
def texts_of_tests() -> tuple[Found, ...]:
    """Names of test files, tests and their helpers, and their first sentences."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        where, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
        if path != Path(__file__):
            found.append(Found(where, "the module", words_of(where.removesuffix(".py"))))
            found.append(Found(where, "its head", (ast.get_docstring(tree) or "").partition("\n")[0]))
            found += public(tree, where)
    return tuple(found)


@cache
def options() -> tuple[Found, ...]:
    """Options of commands and of exports: names and help."""
    found = [
        Found(f"coppice export --to {name}", option, f"{words_of(option)} {made.help}")
        for name, made in ((name, each) for name, form in FORMATS.items() for each in form.options.values())
        for option in (made.name,)
    ]
    for name in COMMANDS:
        made = command_named(name)
        outer = typer.Typer()
        if isinstance(made, typer.Typer):
            outer.add_typer(made, name=name)
        else:
            outer.command(name)(made)
        todo = [(f"coppice {name}", typer.main.get_command(outer))]
        while todo:
            where, command = todo.pop()
            for parameter in command.params:
                text = f"{' '.join(parameter.opts)} {getattr(parameter, 'help', '') or ''}"
                found.append(Found(where, parameter.name or "", text.replace("-", " ")))
            todo += [(f"{where} {each}", inner) for each, inner in getattr(command, "commands", {}).items()]
    return tuple(found)


@cache
def prose() -> tuple[Found, ...]:
    """Lines of the documentation, without code."""
    found = []
    for path in PAGES:
        text = re.sub(r"(?ms)^```.*?^```", lambda block: "\n" * block[0].count("\n"), path.read_text())
        for number, line in enumerate(text.splitlines(), start=1):
            found.append(Found(str(path.relative_to(ROOT)), f"line {number}", re.sub(r"`[^`]*`", "`", line)))
    return tuple(found)


def where_found(word: PrivateWord, texts: tuple[Found, ...]) -> list[str]:
    pattern = re.compile(rf"(?i)(?<![\w`-])(?:{word.pattern})(?![\w`-])")
    return [
        f"{each.where}, {each.what}: {each.text.strip()}"
        for each in texts
        if pattern.search(each.text) and not any(fnmatch(each.where, place) for place, _ in word.allowed)
    ]


def refuse(word: PrivateWord, found: list[str]) -> None:
    assert not found, f"the field says {word.field}:\n" + "\n".join(found[:20])


@pytest.mark.parametrize("word", EVERYWHERE, ids=lambda word: word.pattern)
def test_words_of_ours_stand_nowhere(word: PrivateWord) -> None:
    refuse(word, where_found(word, (*source(), *options(), *prose())))


def test_oracles_of_tests_are_references() -> None:
    refuse(EVERYWHERE[0], where_found(EVERYWHERE[0], texts_of_tests()))


@pytest.mark.parametrize("word", IN_NAMES_AND_SENTENCES, ids=lambda word: word.pattern)
def test_programs_do_not_speak(word: PrivateWord) -> None:
    refuse(word, where_found(word, source()))


@pytest.mark.parametrize("word", TRAINING, ids=lambda word: word.pattern)
def test_training_steps_are_told_in_words_of_frameworks(word: PrivateWord) -> None:
    refuse(
        word, [each for each in where_found(word, source()) if each.startswith(("iteration/", "training/"))]
    )


def test_only_accesses_to_data_race() -> None:
    refuse(RACES, [each for each in where_found(RACES, source()) if each.startswith("fitting/")])


def test_the_search_finds_what_it_is_for() -> None:
    seen = (Found("a.py", "Twin", words_of("TwinDevice")), Found("b.py", "x", "no `twin` here, nor twinned"))
    assert [each.split(",")[0] for each in where_found(EVERYWHERE[0], seen)] == ["a.py"]
