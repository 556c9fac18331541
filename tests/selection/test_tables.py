"""The data files: every name, fact and table that they mention exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import algorithms
from coppice.selection import LIBRARIES, select
from coppice.selection.nccl.releases import constants
from coppice.selection.selection import RuleTest, SelectionRequest, TableRule, decide, parse_rules
from coppice.selection.tables import library
from coppice.topology.generation import GENERATIONS

NAMES = ("open-mpi", "mpich", "mvapich2")
FUNCTIONS = [(name, function) for name in NAMES for function in library(name).functions]


def leaves(rules: tuple[TableRule, ...]) -> Iterator[str]:
    for rule in rules:
        if isinstance(rule.outcome, str):
            yield rule.outcome
        else:
            yield from leaves(rule.outcome)


def named(rules: tuple[TableRule, ...]) -> Iterator[str]:
    for rule in rules:
        for term in rule.terms:
            yield term.left
            if isinstance(term.right, str):
                yield term.right
        if not isinstance(rule.outcome, str):
            yield from named(rule.outcome)


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_outcomes_and_facts_exist(name: str, function: str) -> None:
    entry = library(name).functions[function]
    facts = SelectionRequest(collective=entry.performs, ranks=2, size_bytes=8).facts(entry.m)
    reached: set[str] = set()
    assert entry.start in entry.tables
    for table, data in entry.tables.items():
        rules = parse_rules(data, table)
        assert set(named(rules)) <= set(facts)
        for leaf in leaves(rules):
            if leaf.startswith("table "):
                assert leaf.removeprefix("table ") in entry.tables
            else:
                reached.add(leaf)
    for algorithm in entry.algorithms.values():
        rules = parse_rules(algorithm.becomes, "becomes") if algorithm.becomes else ()
        assert set(named(rules)) <= set(facts)
        reached |= set(leaves(rules)) - {"this"}
    assert reached <= set(entry.algorithms)


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_fallbacks_end(name: str, function: str) -> None:
    algorithms_of = library(name).functions[function].algorithms
    for start in algorithms_of:
        seen, level = {start}, {start}
        while level:
            level = {
                leaf
                for each in level
                if algorithms_of[each].becomes
                for leaf in leaves(parse_rules(algorithms_of[each].becomes, each))
            } - {"this"}
            assert not level & seen
            seen |= level


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_parts_name_functions_and_tables(name: str, function: str) -> None:
    functions = library(name).functions
    for algorithm in functions[function].algorithms.values():
        for part in algorithm.parts:
            assert part.ranks in ("P", "boxes", "per_box")
            assert part.table in functions[part.function].tables


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_names_of_the_catalogue(name: str, function: str) -> None:
    entry = library(name).functions[function]
    for label, algorithm in entry.algorithms.items():
        assert (algorithm.ours is None) == (algorithm.reason is not None), label
        if algorithm.ours is not None:
            found = algorithms()[algorithm.ours, entry.performs]
            assert set(algorithm.parameters) <= set(found.parameters), label
            for key, value in algorithm.parameters.items():
                choices = found.parameters[key].choices
                assert not choices or value in choices, label


def test_names_of_the_catalogue_for_nccl() -> None:
    for collective, names in constants().ours.items():
        for name in names.values():
            assert (name, Collective(collective)) in algorithms()


def test_ids_are_unique_and_without_gaps() -> None:
    for function, entry in library("open-mpi").functions.items():
        ids = [algorithm.id for algorithm in entry.algorithms.values() if algorithm.id is not None]
        assert sorted(ids) == list(range(1, len(ids) + 1)), function


def test_constants_have_every_row() -> None:
    data: Any = constants()
    generations = set(GENERATIONS)
    for key in (
        *("ll_gb_per_s", "ring_ll128_gb_per_s_per_channel", "tree_ll128_gb_per_s_per_channel"),
        *("tree_gb_per_s_per_channel", "nvls_tree_gb_per_s_per_channel", "nvls_efficiency", "most_nvlinks"),
        *("usual_cpu", "speeds_within", "speeds_across"),
    ):
        assert set(getattr(data, key)) == generations, key
    assert all(len(row) == 24 for row in data.tree_correction.values())
    for speeds in (*data.speeds_within.values(), *data.speeds_across.values()):
        assert speeds == sorted(speeds, reverse=True)
    assert {box.generation for box in data.boxes.values()} == generations


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library": None}, "expected `library` of select to be a str, found None"),
        ({"collective": "all_reduc"}, r"there is no collective 'all_reduc': did you mean 'all_reduce'\?"),
        ({"collective": 3}, "expected `collective` of select to be a Collective or a str, found 3"),
        ({"size_bytes": "64X"}, "expected the size to be bytes such as 4096, 64K"),
        ({"size_bytes": 1.5}, "expected `size_bytes` of select to be an int or a str, found 1.5"),
        ({"size_bytes": True}, "expected `size_bytes` of select to be an int or a str, found True"),
        ({"ranks": "48"}, "expected `ranks` of select to be an int or None, found '48'"),
        ({"ranks_per_box": 2.0}, "expected `ranks_per_box` of select to be an int or None, found 2.0"),
        ({"element_bytes": None}, "expected `element_bytes` of select to be an int, found None"),
        (
            {"ranks": None, "topology": 3},
            "expected a preset, a file, text, a networkx graph or a Topology, found 3",
        ),
    ],
)
def test_arguments_of_a_wrong_type_are_named(changes: dict[str, Any], words: str) -> None:
    call = {"library": "open-mpi", "collective": "all_reduce", "size_bytes": 65536, "ranks": 48} | changes
    with pytest.raises(InputError, match=words):
        select(**call)


@pytest.mark.parametrize("name", LIBRARIES)
def test_names_and_numpy_numbers_are_taken_and_the_pick_is_shown_in_a_line(name: str) -> None:
    # RCCL's rings belong to boards.
    plain, numbers = (
        ({"topology": "mi300x"},) * 2 if name == "rccl" else ({"ranks": 48}, {"ranks": np.int32(48)})
    )
    picked = select(name, "all_reduce", np.int64(65536), **numbers)
    assert picked.record() == select(name, Collective.ALL_REDUCE, 65536, **plain).record()
    assert picked.collective is Collective.ALL_REDUCE
    assert type(picked.size_bytes) is int
    assert repr(picked).startswith(f"Selection({picked.library}: ")
    assert picked.algorithm in repr(picked)
    assert len(repr(picked)) < 400


NESTED = [
    "P == 1: alone",
    {"if": "not commutative", "rules": ["m <= 8: small", "otherwise: large"]},
    "elements < floor_pow and commutative: few",
    "P is a power of two: even",
    "otherwise: rest",
]


def outcome(**facts: int | bool) -> str:
    given: dict[str, int | bool] = {
        "P": 6,
        "m": 100,
        "commutative": True,
        "elements": 50,
        "floor_pow": 4,
        "P is a power of two": False,
    }
    return decide(parse_rules(NESTED, "t"), given | facts, table="t")[0]


def test_the_first_rule_that_holds_decides() -> None:
    assert outcome() == "rest"
    assert outcome(P=1, commutative=False) == "alone"
    assert outcome(commutative=False, m=8) == "small"
    assert outcome(commutative=False, m=9) == "large"
    assert outcome(elements=3) == "few"
    assert outcome(elements=4, **{"P is a power of two": True}) == "even"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("P < 5", 4),
        ("P < 5", 5),
        ("P <= 5", 5),
        ("P <= 5", 6),
        ("P == 5", 5),
        ("P >= 5", 5),
        ("P >= 5", 4),
        ("P > 5", 6),
    ],
)
def test_comparisons(text: str, holds: int) -> None:
    found = decide(parse_rules([f"{text}: yes", "otherwise: no"], "t"), {"P": holds}, table="t")[0]
    assert found == ("yes" if eval(f"{holds} {text[2:]}") else "no")


def test_trail_has_every_test_with_the_numbers_put_in() -> None:
    facts = {"P": 6, "m": 9, "commutative": False}
    _, trail = decide(parse_rules(NESTED, "t"), facts, table="name")
    assert trail == (
        RuleTest("name", "P == 1", "6 == 1", held=False, depth=0),
        RuleTest("name", "not commutative", "commutative: no", held=True, depth=0),
        RuleTest("name", "m <= 8", "9 <= 8", held=False, depth=1),
        RuleTest("name", "otherwise", "", held=True, depth=1),
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "end with one 'otherwise'"),
        (["P < 4: a"], "end with one 'otherwise'"),
        (["otherwise: a", "P < 4: b"], "end with one 'otherwise'"),
        (["otherwise: a", "otherwise: b"], "end with one 'otherwise'"),
        (["P < 4", "otherwise: b"], "expected a rule"),
        (["P < 4: ", "otherwise: b"], "expected a rule"),
        ([3, "otherwise: b"], "expected a rule"),
        ([{"if": "P < 4"}, "otherwise: b"], "expected a rule"),
        (["P<4: a", "otherwise: b"], "expected a term"),
        (["P < -4: a", "otherwise: b"], "expected a term"),
        ([{"if": "P < 4", "rules": ["m < 2: a"]}, "otherwise: b"], "in t, P < 4"),
    ],
)
def test_what_is_no_table(data: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_rules(data, "t")
