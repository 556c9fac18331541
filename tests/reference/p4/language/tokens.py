"""Words of a P4_16 text, each with its line and column."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from coppice.errors import InputError

_INCLUDES = ("core.p4", "v1model.p4")
_WORD = re.compile(
    r"""
    (?P<space>[ \t\r\n]+ | //[^\n]* | /\*.*?\*/)
  | (?P<number>(?:[0-9]+[ws])?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|[0-9][0-9_]*))
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<symbol>&&&|&&|\|\||==|!=|<=|>=|<<|\+\+|\.\.|[-+*/%&|^~!<>=?:;,.(){}\[\]@])
    """,
    re.VERBOSE | re.DOTALL,
)

# fmt: off
KEYWORDS = frozenset(
    {
        "action", "actions", "apply", "bit", "bool", "const", "control", "default",
        "default_action", "else", "entries", "error", "exit", "extern", "false", "header", "if",
        "in", "inout", "int", "key", "out", "package", "parser", "return", "select", "size",
        "state", "struct", "switch", "table", "transition", "true", "typedef", "enum",
        "header_union", "match_kind", "tuple", "varbit", "void", "abstract", "value_set", "this",
    }
)
# fmt: on
"""Names that no declaration may have."""


class At(NamedTuple):
    """Where a word stands."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class P4Token(NamedTuple):
    """One word.

    Attributes:
        kind: ``name``, ``number``, ``symbol`` or ``end``.
        text: As written.
        at: Where.
    """

    kind: str
    text: str
    at: At


def refuse(at: At, words: str) -> NoReturn:
    """Say what is wrong at a place.

    Raises:
        InputError: Always.
    """
    raise InputError(f"{at}: {words}.")


def tokens_of(text: str, *, file: str = "the program") -> list[P4Token]:
    """All words of a text, and one of the kind ``end``.

    Lines that start with ``#`` may include ``core.p4`` and ``v1model.p4``, which the interpreter knows.

    Args:
        text: The program.
        file: Its name, for messages.

    Raises:
        InputError: If something in it is no word of P4, or another file is included.

    Examples:
        >>> [word.text for word in tokens_of("bit<8> x = 8w0xff; // note")]
        ['bit', '<', '8', '>', 'x', '=', '8w0xff', ';', '']
        >>> tokens_of("x = $;")
        Traceback (most recent call last):
        coppice.errors.InputError: the program:1:5: expected a word of P4, found '$'.
    """
    found: list[P4Token] = []
    line, begin, place = 1, 0, 0
    while place < len(text):
        at = At(file, line, place - begin + 1)
        if text[place] == "#" and not text[begin:place].strip():
            end = text.find("\n", place)
            directive = text[place : end if end >= 0 else len(text)].strip()
            if not re.fullmatch(r"#\s*include\s*<(" + "|".join(map(re.escape, _INCLUDES)) + ")>", directive):
                refuse(
                    at,
                    f"expected #include of {' or '.join(f'<{name}>' for name in _INCLUDES)}, found {directive}",
                )
            place += len(directive)
            continue
        match = _WORD.match(text, place)
        if match is None:
            refuse(at, f"expected a word of P4, found {text[place]!r}")
        kind, word = str(match.lastgroup), match[0]
        if kind != "space":
            found.append(P4Token(kind, word, at))
        line += word.count("\n")
        if "\n" in word:
            begin = place + word.rindex("\n") + 1
        place = match.end()
    found.append(P4Token("end", "", At(file, line, place - begin + 1)))
    return found
