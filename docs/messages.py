"""Every error and warning of the program with the page that explains it, for the page `messages.md` of the site.

Messages are read from the source: what follows `raise` of an error of ours, and what is added to lists of warnings and
notes. What a message fills in is written as an ellipsis. Rules of `coppice doctor` are listed with their numbers.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from coppice import doctor
from coppice.doctor.framework import Rulebook

SOURCE = Path(__file__).resolve().parents[1] / "src" / "coppice"
ERRORS = re.compile(
    r"(\w+Error|Mismatch|PeerLost|TimedOut|_failed|_strange|strange|lost_rank|_changed|unanswered)$"
)
REMARKS = re.compile(r"(warnings?|notes?)$")

PAGES = {
    "": "data-model",
    "bounds": "method",
    "cli": "cli",
    "comparison": "comparison",
    "design": "design",
    "doctor": "runtimes",
    "export": "runtimes",
    "export/chakra": "chakra",
    "export/nccl": "stock-libraries",
    "export/open_mpi": "stock-libraries",
    "export/put_signal": "put-signal",
    "fitting": "stock-libraries",
    "innetwork": "in-network",
    "iteration": "iteration",
    "iteration/job": "jobs",
    "language": "language",
    "logs": "logs",
    "planners": "comparison",
    "planners/synthesis": "synthesis",
    "program": "runtimes",
    "program/dialects/put_signal": "put-signal",
    "report": "report",
    "run": "run",
    "run/bench": "lab",
    "run/lab": "lab",
    "run/probe": "lab",
    "run/torch": "torch",
    "run/engines/put_signal": "put-signal",
    "run/engines/shared_memory": "shared-memory",
    "schedule": "plan-format",
    "selection": "selection",
    "simulation": "simulation",
    "topology": "topology-formats",
    "training": "overlap",
    "training/autolrs": "autolrs",
    "training/torch/autolrs": "autolrs",
    "tuning": "tuning",
    "tuning/plugin": "nccl-plugins",
}
"""The page of a folder or file of the package; the longest name that fits counts."""


def page_of(path: Path) -> str:
    """The page about a file of the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    names = ("/".join(parts[:length]) for length in range(len(parts), -1, -1))
    return PAGES[next(name for name in names if name in PAGES)]


def messages(path: Path) -> Iterator[str]:
    """The messages of a file, in order."""
    for statements in _functions(ast.parse(path.read_text())):
        named = {
            target.id: node.value
            for node in statements
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in statements:
            for said in _said(node):
                text = _template(named.get(said.id, said) if isinstance(said, ast.Name) else said)
                if len(re.findall(r"\w+", text)) > 2:
                    yield text


def _functions(tree: ast.AST) -> list[list[ast.AST]]:
    """What may tell people something, or name it, in each function with those inside it; each node is seen once."""
    functions: list[list[ast.AST]] = []

    def visit(node: ast.AST, around: tuple[list[ast.AST], ...]) -> None:
        if isinstance(node, ast.FunctionDef):
            functions.append([])
            around = (*around, functions[-1])
        elif around and isinstance(node, ast.Assign | ast.Raise | ast.Call):
            for function in around:
                function.append(node)
        for child in ast.iter_child_nodes(node):
            visit(child, around)

    visit(tree, ())
    return functions


def _said(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement tells people: an error that it raises, or what it adds to a list of remarks."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from node.exc.args[:1] if ERRORS.search(_name(node.exc.func)) else ()
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        remarks = (
            REMARKS.search(_name(node.func.value)) if node.func.attr == "append" else node.func.attr == "warn"
        )
        yield from node.args[:1] if remarks else ()


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _template(node: ast.expr) -> str:
    """The text of an expression, with an ellipsis for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return "…"


def _markdown(text: str) -> str:
    """A message as Markdown: its backticks make code, nothing else has a meaning."""
    parts = " ".join(text.split()).split("`")
    whole = len(parts) % 2 == 1
    return "`".join(
        part if whole and number % 2 else re.sub(r"([\\`*_\[\]<>$|#~^])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


@cache  # of the files as they are
def all_messages() -> dict[str, list[str]]:
    """Messages by the page that explains them."""
    found: dict[str, dict[str, None]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for text in messages(path):
            found.setdefault(page_of(path), {}).setdefault(text)
    return {page: sorted(texts, key=str.lower) for page, texts in sorted(found.items())}


def doctor_rules() -> list[Any]:
    """Every rule of `coppice doctor`, by number."""
    rooms = pkgutil.walk_packages(doctor.__path__, "coppice.doctor.")
    books = [
        book
        for room in rooms
        for book in vars(import_module(room.name)).values()
        if isinstance(book, Rulebook)
    ]
    rules = {(rule.id, rule.title): rule for book in books for rule in book}
    return [rules[key] for key in sorted(rules)]


def filled(page: str) -> str:
    """The page with its lists, which stand where it names them in comments."""
    lists = []
    for name, texts in all_messages().items():
        title = (SOURCE.parents[1] / "docs" / f"{name}.md").read_text().partition("\n")[0].lstrip("# ")
        lists += ["", f"### [{title}]({name}.md)", "", *(f"* {_markdown(text)}" for text in texts)]
    rules = ["| rule | | what it wants | where it is broken |", "|---|---|---|---|"]
    rules += [
        f"| `{rule.id}` | {rule.severity} | {_markdown(rule.title)} | {_markdown(rule.why)} |"
        for rule in doctor_rules()
    ]
    return page.replace("<!-- messages -->", "\n".join(lists)).replace("<!-- rules -->", "\n".join(rules))
