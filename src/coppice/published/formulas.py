"""Take numbers out of JSON: paths with choices of rows, and arithmetic over them.

A path is keys with dots; `[2]` takes an element of a list, `[-1]` the last one, `[name=ring]` the first whose `name` is
`ring`, `[*]` the values of all that are not null, `[two-phase]` what an object has for such a key; `[=unsat]` says
whether it is that text. A formula has paths or names, numbers, `+ - * /`, brackets, `max(...)` and
`min(...)`. Text such as `1040/3` counts as that fraction, yes and no as 1 and 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from coppice.errors import InputError

__all__ = ["names_in", "value_of"]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)|(?P<path>[a-z_]\w*(?:\.\w+|\[[^\]]*\])*)|(?P<sign>[-+*/(),]))",
    re.IGNORECASE,
)
_PART = re.compile(r"(?:^|\.)(?P<key>\w+)|\[(?P<choice>[^\]]*)\]")
_FUNCTIONS = {"max": max, "min": min}


def names_in(formula: str) -> Iterator[str]:
    """First keys of the paths of a formula.

    >>> list(names_in("max(ring, tree.rows[0].time) / 2"))
    ['ring', 'tree']
    """
    for kind, text in _tokens(formula):
        if kind == "path" and text not in _FUNCTIONS:
            yield re.split(r"[.\\[]", text)[0]


def value_of(formula: str, document: Any) -> float:
    """Compute a formula over a document.

    Raises:
        InputError: If a path leads nowhere or to no number, or the formula cannot be read.

    Examples:
        >>> value_of("rows[name=ring].time / min(rows[*].time)", {"rows": [{"name": "ring", "time": "3/2"}]})
        1.0
    """
    reader = _FormulaReader(formula, document)
    found: float | list[float] = reader.sum()
    if not reader.done() or isinstance(found, list):
        raise InputError(f"expected a formula for one number, found {formula}.")
    return found


def _tokens(formula: str) -> Iterator[tuple[str, str]]:
    place = 0
    while formula[place:].strip():
        found = _TOKEN.match(formula, place)
        if found is None or found.lastgroup is None:
            raise InputError(f"expected a formula of paths, numbers and + - * /, found {formula[place:]}.")
        yield found.lastgroup, found[found.lastgroup]
        place = found.end()


class _FormulaReader:
    """A descent over sums, products and terms."""

    def __init__(self, formula: str, document: Any) -> None:
        self._tokens = list(_tokens(formula))
        self._formula, self._document = formula, document

    def done(self) -> bool:
        return not self._tokens

    def _taken(self, signs: str) -> str | None:
        if self._tokens and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs:
            return self._tokens.pop(0)[1]
        return None

    def sum(self) -> Any:
        found = self.product()
        while sign := self._taken("+-"):
            other = self.product()
            found = found + other if sign == "+" else found - other
        return found

    def product(self) -> Any:
        found = self.term()
        while sign := self._taken("*/"):
            other = self.term()
            found = found * other if sign == "*" else found / other
        return found

    def term(self) -> Any:
        if not self._tokens:
            raise InputError(f"expected a number or a path, found the end of {self._formula}.")
        kind, text = self._tokens.pop(0)
        if kind == "number":
            return float(text)
        if kind == "path" and text in _FUNCTIONS and self._taken("("):
            given = [self.sum()]
            while self._taken(","):
                given.append(self.sum())
            if self._taken(")"):
                values = [each for some in given for each in (some if isinstance(some, list) else [some])]
                return float(_FUNCTIONS[text](values))
        elif kind == "path":
            return _number(_at(text, self._document), text)
        elif text == "(":
            found = self.sum()
            if self._taken(")"):
                return found
        raise InputError(f"expected a number, a path or a bracket that is closed, found {self._formula}.")


def _at(path: str, document: Any) -> Any:
    found = document
    parts = list(_PART.finditer(path))
    for place, part in enumerate(parts):
        if part["choice"] == "*":
            rest = path[part.end() :].lstrip(".")
            rows = found if isinstance(found, list) else []
            return [_at(rest, row) if rest else row for row in rows]
        try:
            found = _chosen(part["choice"], found) if part["key"] is None else found[part["key"]]
        except (KeyError, IndexError, TypeError, ValueError, StopIteration):
            shown = "".join(each[0] for each in parts[: place + 1]).lstrip(".")
            raise InputError(f"expected {shown} in the output of the command, found none.") from None
    return found


def _chosen(choice: str, rows: Any) -> Any:
    key, sign, value = choice.partition("=")
    if not key:
        return rows == value
    if not sign:
        return rows[key] if isinstance(rows, Mapping) else rows[int(key)]
    return next(row for row in rows if str(row.get(key)) == value)


def _number(found: Any, path: str) -> Any:
    if isinstance(found, list):
        return [_number(each, path) for each in found if each is not None]
    try:
        return float(Fraction(found)) if isinstance(found, str) else float(found)
    except (TypeError, ValueError):
        raise InputError(
            f"expected a number at {path} in the output of the command, found {found!r}."
        ) from None
