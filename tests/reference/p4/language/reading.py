"""Words, types and expressions of P4_16, read by recursive descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reference.p4.language import syntax as node
from reference.p4.language.tokens import KEYWORDS, At, P4Token, refuse

_Part = TypeVar("_Part")

# From what binds least; the words of one row bind alike, from the left.
_LEVELS = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("+", "-", "++"),
    ("*", "/", "%"),
)


class ExpressionReader:
    """Reads words, types and expressions.

    Args:
        words: Of the program, the last of the kind ``end``.
    """

    def __init__(self, words: list[P4Token]) -> None:
        self.words = words
        self.place = 0
        self.types = {"bit", "int", "bool", "error"}

    # ---- words

    @property
    def word(self) -> P4Token:
        """The next word."""
        return self.words[self.place]

    @property
    def at(self) -> At:
        """Where it stands."""
        return self.word.at

    def ahead(self, by: int) -> str:
        """Text of a later word."""
        return self.words[min(self.place + by, len(self.words) - 1)].text

    def taken(self, text: str) -> bool:
        """Whether the next word is this one, which is then behind us."""
        if self.word.text == text and self.word.kind != "end":
            self.place += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Read one word, and no other."""
        if not self.taken(text):
            self.unexpected(f"{text!r}")

    def unexpected(self, wanted: str) -> None:
        """Say what was expected instead of the next word."""
        found = repr(self.word.text) if self.word.kind != "end" else "the end"
        refuse(self.at, f"expected {wanted}, found {found}")

    def name(self) -> str:
        """A name that is no keyword."""
        if self.word.kind != "name" or self.word.text in KEYWORDS:
            self.unexpected("a name")
        self.place += 1
        return self.words[self.place - 1].text

    def until(self, end: str, part: Callable[[], _Part]) -> tuple[_Part, ...]:
        """Parts up to a word that ends them."""
        found = []
        while not self.taken(end):
            if self.word.kind == "end":
                self.unexpected(repr(end))
            found.append(part())
        return tuple(found)

    def separated(self, end: str, part: Callable[[], _Part]) -> tuple[_Part, ...]:
        """Parts with commas between them, up to a word that ends them."""
        found: list[_Part] = []
        while not self.taken(end):
            if found:
                self.expect(",")
            found.append(part())
        return tuple(found)

    def type_name(self) -> node.TypeName:
        """A type."""
        at = self.at
        if self.word.kind != "name" or (self.word.text in KEYWORDS and self.word.text not in self.types):
            self.unexpected("a type")
        name = self.word.text
        self.place += 1
        if self.word.text != "<" or name not in ("bit", "int", "register"):
            return node.TypeName(at, name)
        self.expect("<")
        if name == "register":
            argument = self.type_name()
            self.expect(">")
            return node.TypeName(at, name, arguments=(argument,))
        width = self.postfix()  # what stands in angle brackets is a number, a name, or in parentheses
        self.expect(">")
        return node.TypeName(at, name, width)

    # ---- expressions

    def expression(self) -> node.Expression:
        """An expression."""
        condition = self.binary(0)
        at = self.at
        if not self.taken("?"):
            return condition
        then = self.expression()
        self.expect(":")
        return node.Conditional(at, condition, then, self.expression())

    def operator(self, level: int) -> str | None:
        """The operator of a level that stands next, which is then behind us."""
        text = self.word.text
        if text == ">" and self.ahead(1) == ">":  # not one word, as angle brackets may close together
            following = self.words[self.place + 1].at
            if (following.line, following.column) == (self.at.line, self.at.column + 1):
                text = ">>"
        if text not in _LEVELS[level]:
            return None
        self.place += 2 if text == ">>" else 1
        return text

    def binary(self, level: int) -> node.Expression:
        """Operands with the operators of a level between them."""
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while True:
            at = self.at
            operator = self.operator(level)
            if operator is None:
                return left
            left = node.BinaryOp(at, operator, left, self.binary(level + 1))

    def unary(self) -> node.Expression:
        """An operand with what stands before it."""
        at = self.at
        for operator in ("-", "~", "!"):
            if self.taken(operator):
                return node.UnaryOp(at, operator, self.unary())
        if self.word.text == "(" and self.ahead(1) in self.types and self.ahead(2) != ".":
            self.expect("(")
            of = self.type_name()
            self.expect(")")
            return node.CastTo(at, of, self.unary())
        return self.postfix()

    def postfix(self) -> node.Expression:
        """An operand with the fields, parts and arguments behind it."""
        at = self.at
        found = self.primary()
        while True:
            if self.taken("."):
                # `apply` is a keyword, and the name of a method.
                name = "apply" if self.taken("apply") else self.name()
                found = node.MemberOf(at, found, name)
            elif self.taken("["):
                high = self.expression()
                self.expect(":")
                found = node.SliceOf(at, found, high, self.expression())
                self.expect("]")
            elif self.taken("("):
                found = node.CallOf(at, found, self.separated(")", self.expression))
            else:
                return found

    def primary(self) -> node.Expression:
        """A number, a name, a list, or what stands in parentheses."""
        at, word = self.at, self.word
        if word.kind == "number":
            self.place += 1
            return _number(word)
        if self.taken("true") or self.taken("false"):
            return node.Truth(at, word.text == "true")
        if self.taken("error"):
            return node.NameOf(at, "error")
        if self.taken("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if self.taken("{"):
            return node.ListOf(at, self.separated("}", self.expression))
        if word.kind != "name" or word.text in KEYWORDS:
            self.unexpected("an expression")
        return node.NameOf(at, self.name())


def _number(word: P4Token) -> node.Literal:
    text, width, signed = word.text, None, False
    for letter in "ws":
        head, found, digits = text.partition(letter)
        if found and head.isdigit():
            text, width, signed = digits, int(head), letter == "s"
    value = int(text.replace("_", ""), 0 if text[:2].lower() in ("0x", "0b") else 10)
    return node.Literal(word.at, value, width, signed)
