"""Modules and names of the package that documentation mentions are there."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

from support.pages import PAGES
from support.paths import ROOT

SOURCES = sorted((ROOT / "src" / "coppice").rglob("*.py"))
NAME = re.compile(r"(?<![\w./-])coppice(?:\.[A-Za-z_]\w*)+(?!\w*[/-])")


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or what one holds."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            if find_spec(".".join(parts[:length])) is None:
                continue
        except ModuleNotFoundError:
            continue
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:  # of a module that needs what is not installed here
            return not str(error.name).startswith("coppice")
        for part in parts[length:]:
            if part not in getattr(found, "__dataclass_fields__", {}) and not hasattr(found, part):
                return False
            found = getattr(found, part, found)
        return True
    return False


def test_names_are_there() -> None:
    made_up = {"coppice.repeat"}  # the function of an example
    for path in (*PAGES, *SOURCES):
        names = {name.rstrip(".") for name in NAME.findall(path.read_text())}
        if find_spec("torch") is None:
            names = {name for name in names if "torch" not in name}
        files = {
            name for name in names if re.search(r"\.(py|json|xml|html|svg|yaml|env|conf|csv|jsonl)$", name)
        }
        missing = sorted(name for name in names - files - made_up if not resolves(name))
        assert not missing, f"{path} names what is not there: {', '.join(missing)}"
