"""The language of decision tables, apart from any library."""

from __future__ import annotations

from typing import Any

import pytest

from coppice.errors import InputError
from coppice.selection.rules import RuleTest, decide, parse_rules

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
