"""The options of all commands are one vocabulary: a name has one meaning, form and default, and a meaning one name."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

import coppice
from cli.conftest import Run
from cli.test_manners import commands
from coppice.options.shared import USUAL_SIZE, USUAL_SIZES
from coppice.text import sizes_of

MOST = 168
"""Distinct options over all commands: who adds one looks for the name that is there already."""

LISTS = {"LIST": "NAME", "CHANGE": "KIND=FACTOR"}
"""Forms that are several of another one, or one of several: they are read alike."""

FORMS = {
    "--output": "a folder where there are several files",
    "--pieces": "the best number is searched by simulation only",
    "--order": "a comparison takes the better of both",
    "--protocol": "a library writes them as NCCL does",
    "--target": "an export says which there are",
    "--to": "each says which there are",
    "--trees": "a plan may be taken as it is",
    "--values": "programs of switches are written for two numbers",
    "--size": "commands that simulate take several",
}
"""Names whose values have several forms, and why."""

DEFAULTS = {
    "--algorithm": "what is planned, compared or measured",
    "--collective": "graphs are designed for all-gathers, lists are of all collectives",
    "--in-network": "a comparison asks switches by itself",
    "--relay-gpus": "the same",
    "--library": "logs are those of NCCL",
    "--name": "what is named: a lab, a model, a file",
    "--order": "a comparison takes the better of both",
    "--output": "pages and lists have names of their own",
    "--pieces": "the best number is searched by simulation only",
    "--policy": "what is compared or tuned",
    "--root": "nccl-tests has a root always",
    "--rounds": "what is measured in a round",
    "--shard": "a module is not sharded",
    "--size": "64M for one, one list for many, none where it chooses",
    "--slots": "a search of all interleavings is small",
    "--step": "all of a profile, the second of a script",
    "--time-limit": "where there is none, work ends by itself",
    "--top": "rows are long or short",
    "--values": "a search of all interleavings is small",
    "--workers": "a search is small, a model usual, a switch takes any",
}
"""Names with several defaults, and why."""


class Declared(NamedTuple):
    """An option of a command."""

    command: str
    form: str | None
    default: object
    help: str


def options() -> Iterator[tuple[str, Any, str]]:
    for words, command in commands():
        for each in command.params:
            if each.param_type_name == "option":
                yield next(name for name in each.opts if name.startswith("--")), each, words


@cache
def declared() -> dict[str, list[Declared]]:
    found: dict[str, list[Declared]] = defaultdict(list)
    for name, each, words in options():
        form = each.metavar
        found[name].append(Declared(words, LISTS.get(form, form), each.default, each.help or ""))
    return found


def test_there_are_no_more_names_than_needed() -> None:
    assert len(declared()) <= MOST


@pytest.mark.parametrize("name", sorted(declared()))
def test_a_name_has_one_form_and_one_default(name: str) -> None:
    forms = {each.form for each in declared()[name]}
    # A required option has no default to differ by, and None is told by what is at hand.
    defaults = {str(each.default) for each in declared()[name]}
    assert len(forms) == 1 or name in FORMS, declared()[name]
    assert len(defaults) == 1 or name in DEFAULTS, declared()[name]


def test_exceptions_are_needed() -> None:
    several = {name: {each.form for each in found} for name, found in declared().items()}
    assert {name for name in FORMS if len(several.get(name, ())) < 2} == set()
    several = {name: {str(each.default) for each in found} for name, found in declared().items()}
    assert {name for name in DEFAULTS if len(several.get(name, ())) < 2} == set()


def test_a_meaning_has_one_name() -> None:
    names = defaultdict(set)
    for name, found in declared().items():
        for each in found:
            names[each.help].add(name)
    # A graph has two files: its topology, and the plan of its schedule.
    names.pop("Write the schedule as a plan.")
    assert {text: found for text, found in names.items() if len(found) > 1} == {}


def former() -> list[tuple[str, str, Any]]:
    return [
        (words, flag, (command, now))
        for words, command in commands()
        for flag, (now, _) in getattr(command.callback, "former_flags", {}).items()
    ]


@pytest.mark.parametrize(("words", "flag", "now"), former(), ids=lambda each: str(each)[:40])
def test_a_former_name_leads_to_one_that_there_is(words: str, flag: str, now: Any) -> None:
    del words, flag
    command, flags = now
    known = {name for each in command.params for name in each.opts}
    assert set(flags) <= known | {part for name in flags for part in name.split("/")}


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("compare star --set gpus=4 --sizes 1K --algorithms ring", "--algorithms is now --algorithm."),
        (
            "compare star --set gpus=4 --size 1K -a ring --overhead=5",
            "--overhead is now --assume overhead=VALUE.",
        ),
        ("design cabling biring(4) --panel-ports 4", "--panel-ports is now --limit panel_ports=VALUE."),
        ("select --library mpich --ranks 4 --size 1K", "--ranks is now --num-ranks."),
        ("select --library mpich --num-ranks 4 --size 1K --non-commutative", "--call commutative=no."),
        ("train search llama3-8b --cluster dgx-a100 --global-batch 8", "--cluster is now --topology."),
        ("placement star --set gpus=4 --axes dp=4 --reduce dp --limit programs=1", "--limit is now --list."),
        ("placement star --set gpus=4 --axes dp=4 --reduce dp --relays", "--relays is now --relay-unranked."),
        ("switch place fat-tree --budget 1 --trees 2", "--trees is now --parts."),
        ("switch check --protocol switchml", "--protocol is now --system."),
        (
            "switch check --losses 0 --duplicates 0 --early-timeouts 0",
            "--losses is now --fault losses=VALUE.",
        ),
    ],
)
def test_former_names_are_read_and_say_the_new_ones_once(run: Run, words: str, now: str) -> None:
    found = run(*words.split())
    assert found.code == 0, found.err
    assert found.err.count(now) == 1
    assert found.err.startswith("note: --")


def test_a_former_name_has_the_value_of_the_new_one(run: Run) -> None:
    before = run("compare", "star", "--set", "gpus=4", "--size", "1K", "-a", "ring", "--overhead", "5")
    now = run("compare", "star", "--set", "gpus=4", "--size", "1K", "-a", "ring", "--assume", "overhead=5")
    without = run("compare", "star", "--set", "gpus=4", "--size", "1K", "-a", "ring", "--model", "alpha-beta")
    assert before.out == now.out != without.out


def test_sizes_have_one_default_list_and_one_size_of_it() -> None:
    several = {each.default for each in declared()["--size"]} - {None}
    assert several == {USUAL_SIZE, USUAL_SIZES}
    stepped = [
        each.params for _, each in commands() if any("--stepfactor" in param.opts for param in each.params)
    ]
    assert len(stepped) == 2
    for params in stepped:
        first, last, factor = (
            next(param.default for param in params if flag in param.opts)
            for flag in ("--minbytes", "--maxbytes", "--stepfactor")
        )
        assert f"{first}:{last}:{factor}" == USUAL_SIZES
    assert sizes_of(USUAL_SIZE)[0] in sizes_of(USUAL_SIZES)
    for verb in (coppice.compare, coppice.bench, coppice.tune.sweep):
        assert inspect.signature(verb).parameters["sizes"].default == USUAL_SIZES


ONE_MEANING = {
    "--fault": "Faults of packets",
    "--limit": "Upper limits",
    "--list": "How many to list",
    "--option": "Option of another export",
    "--parts": "Equal parts of each job",
    "--relay-unranked": "GPUs without a rank",
    "--service": "What is served",
    "--system": "System in the network",
    "--trees": None,
    "--protocol": None,
}
"""Names that had several meanings, and how the help of each command that has one begins; None: by the commands."""


def test_names_that_had_several_meanings_have_one() -> None:
    for name, words in ONE_MEANING.items():
        for each in declared()[name]:
            assert words is None or each.help.startswith(words), (name, each)
    assert {each.command for each in declared()["--trees"]} == {"bound", "plan", "export"}
    assert {each.command for each in declared()["--protocol"]} == {"simulate", "export"}
    assert "--relays" not in declared()


def test_a_value_is_not_taken_for_a_name(run: Run) -> None:
    found = run("topology", "show", "star", "--set", "gpus=4", "--rates", "--cluster")
    assert found.code == 2
    assert "is now" not in found.err


def test_words_of_another_program_stay(run: Run) -> None:
    found = run("lab", "run", "--name", "nothing", "--", "mpirun", "--mpi-option", "x")
    assert "is now" not in found.err


def test_a_record_in_an_option_is_held_to_its_limits(run: Run) -> None:
    assert "did you mean 'overhead'" in run("simulate", "x.json", "--assume", "overhed=1").err
    assert "expected `overhead` of 0 or more" in run("simulate", "x.json", "--assume", "overhead=-1").err
    assert "write both, with an equals sign" in run("simulate", "x.json", "--assume", "fair").err
