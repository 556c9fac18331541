"""Recursive-descent parser of recipes; messages name the column.

product    = power { "*" power }
power      = primary { "^" number }
primary    = "(" product ")" | name | name "(" arguments ")" | "line" [ "^" number ] "(" product ")"
arguments  = [ argument { "," argument } ]     numbers for a family, recipes and a number for an expansion
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from coppice.design.families import FAMILIES
from coppice.design.recipes.recipe import Base, Bidirectional, Degree, LineGraph, Recipe, power, product
from coppice.errors import InputError
from coppice.text import nearest

EXPANSIONS = {"line": "line(R), line^n(R)", "degree": "degree(R, n)", "bidirectional": "bidirectional(R)"}
_TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[()*^,]")
_MAX_LENGTH = 4096
_MAX_DEPTH = 64
_MAX_DIGITS = 12
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    column: int  # counted from 1

    @property
    def shown(self) -> str:
        """The token as a message shows it."""
        return repr(self.text[:40]) if self.text else "the end"


def parse(text: str) -> Recipe:
    """Parse a recipe.

    Args:
        text: Such as ``line^3(circulant(16, 3, 4))``, ``diamond^2``, ``uniring(4) * uniring(8)``, ``degree(K, 2)``.

    Examples:
        >>> str(parse("line( line(complete(3)))")), parse("torus(4,4)").facts().steps
        ('line^2(complete(3))', 4)
    """
    if len(text) > _MAX_LENGTH:
        raise InputError(
            f"expected a recipe of at most {_MAX_LENGTH} characters, found {len(text)}: choose a shorter one."
        )
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[_Token]:
    tokens, place = [], 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        match = _TOKEN.match(text, place)
        if match is None:
            _fail("a name, a number or one of ( ) * ^ ,", _Token(text[place], place + 1))
        tokens.append(_Token(match.group(), place + 1))
        place = match.end()
    return [*tokens, _Token("", len(text) + 1)]


def _fail(expected: str, found: _Token, hint: str = "") -> NoReturn:
    raise InputError(
        f"expected {expected}, found {found.shown} at column {found.column} of the recipe{hint and ': ' + hint}."
    )


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def whole(self) -> Recipe:
        recipe = self._product()
        if self._next.text:
            _fail("'*', '^' or the end", self._next)
        return recipe

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._next
        self._place += 1
        return token

    def _expect(self, text: str) -> None:
        if self._next.text != text:
            _fail(f"'{text}'", self._next)
        self._place += 1

    def _accept(self, text: str) -> bool:
        found = self._next.text == text
        self._place += found
        return found

    def _number(self) -> int:
        token = self._next
        if not token.text.isdecimal():
            _fail("a number", token)
        if len(token.text) > _MAX_DIGITS:
            _fail(f"a number of at most {_MAX_DIGITS} digits", token)
        return int(self._take().text)

    def _product(self) -> Recipe:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _fail(f"at most {_MAX_DEPTH} levels of nesting", self._next)
        start = self._next
        parts = [self._power()]
        while self._accept("*"):
            parts.append(self._power())
        self._depth -= 1
        return _placed(start, lambda: product(*parts))

    def _power(self) -> Recipe:
        start = self._next
        recipe = self._primary()
        while self._accept("^"):
            inner, exponent = recipe, self._number()
            recipe = _placed(start, lambda inner=inner, n=exponent: power(inner, n))  # type: ignore[misc]
        return recipe

    def _primary(self) -> Recipe:
        token = self._take()
        if token.text == "(":
            recipe = self._product()
            self._expect(")")
            return recipe
        if not token.text[:1].isalpha():
            _fail("a family, an expansion or '('", token)
        if token.text in EXPANSIONS:
            return self._expansion(token)
        if token.text not in FAMILIES:
            near = nearest(token.text, [*FAMILIES, *EXPANSIONS])
            hint = f"did you mean {near}" if near else f"families are {', '.join(sorted(FAMILIES))}"
            _fail("a family or an expansion", token, hint)
        arguments: list[int] = []
        if self._accept("(") and not self._accept(")"):
            arguments.append(self._number())
            while self._accept(","):
                arguments.append(self._number())
            self._expect(")")
        recipe = _placed(token, lambda: Base(token.text, tuple(arguments)))
        _placed(token, lambda: recipe.size)
        return recipe

    def _expansion(self, token: _Token) -> Recipe:
        times = self._number() if token.text == "line" and self._accept("^") else 1
        self._expect("(")
        inner = self._product()
        copies = 0
        if token.text == "degree":
            self._expect(",")
            copies = self._number()
        self._expect(")")
        makers: dict[str, Callable[[], Recipe]] = {
            "line": lambda: LineGraph(inner, times),
            "degree": lambda: Degree(inner, copies),
            "bidirectional": lambda: Bidirectional(inner),
        }
        return _placed(token, makers[token.text])


def _placed(token: _Token, make: Callable[[], _Made]) -> _Made:
    """What ``make`` returns; its complaint gets the column of ``token``."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"column {token.column} of the recipe: {error}") from None
