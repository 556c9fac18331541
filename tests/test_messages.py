"""Messages of the library name Python keywords, never options of the command line; only the command line does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "coppice"

# Options of other programs, and of whole commands of ours such as `coppice plan -o plan.json`, are no concern of this.
PROGRAMS = (
    "coppice",
    "mpirun",
    "mpiexec",
    "torchrun",
    "srun",
    "pip",
    "python",
    "cc",
    "nvidia-smi",
    "rocm-smi",
)
FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
LONG_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of what is assigned to `msg` or stands in a `raise`; `{}` stands for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "msg" for t in node.targets
        ):
            yield node.lineno, text_of(node.value)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from ((node.lineno, text_of(argument)) for argument in node.exc.args)


def text_of(node: ast.expr) -> str:
    """The constant text of an expression, that of both sides of a condition included."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else "{}"
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value) if isinstance(node.value, ast.IfExp) else "{}"
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} | {text_of(node.orelse)}"
    return "{}"


def flags(message: str) -> list[str]:
    """Options of the command line in a message.

    Commands in backticks may have options: they are typed as a whole.
    """
    outside = re.sub(rf"`(?:{'|'.join(PROGRAMS)})\b[^`]*`", "", message)
    quoted = [flag for span in re.findall(r"`([^`]*)`", outside) for flag in FLAG.findall(span)]
    plain = [
        flag
        for clause in re.split(r"[,;:.|]\s", re.sub(r"`[^`]*`", "", outside))
        for flag in LONG_FLAG.findall(clause)
        if not re.search(rf"\b(?:{'|'.join(PROGRAMS)})\b", clause)
    ]
    return [*quoted, *plain]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("leave out `--relay-gpus` or take `--trees 4`.", ["--relay-gpus", "--trees"]),
        ("give a file (`-o plan.json`).", ["-o"]),
        ("expected --size of 1 byte or more", ["--size"]),
        ("leave out `relay_gpus` or take `trees=4`.", []),
        ("make one with `coppice plan ... -o plan.json`.", []),
        ("start it with mpirun --oversubscribe, or fewer ranks.", []),
        ("run `pip install --no-deps coppice`, or leave out --json.", ["--json"]),
        ("a well-known name - of a high--rate link", []),
    ],
)
def test_what_names_an_option(message: str, found: list[str]) -> None:
    assert flags(message) == found


def named() -> dict[str, list[str]]:
    """Places of messages outside the command line that name its options, by file."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("cli/"):
            for line, text in messages(ast.parse(path.read_text(), filename=str(path))):
                found.setdefault(name, []).extend(f"{name}:{line}: {flag} in {text}" for flag in flags(text))
    return {name: places for name, places in found.items() if places}


def test_messages_name_keywords() -> None:
    places = [place for here in named().values() for place in here]
    assert not places, "write the keyword instead, such as `trees=1`:\n" + "\n".join(places)
