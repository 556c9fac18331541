"""Write the page about what commands print as JSON.

Usage: python docs/outputs.py [--check]; with --check nothing is written, and the exit code is 1 if it is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coppice.outputs.formats import OUTPUTS, format_of
from coppice.outputs.schema import read_schema

PAGE = Path(__file__).with_name("json.md")
BEGIN, END = "<!-- outputs: begin -->", "<!-- outputs: end -->"


def table() -> str:
    """Commands, their formats and what these hold."""
    rows = ["| command | `format` | what it holds |", "|---|---|---|"]
    for name, output in OUTPUTS.items():
        commands = ", ".join(f"`{each}`" for each in output.commands)
        about = _first_sentence(name)
        lines = "; a line each" if output.lines else ""
        rows.append(f"| {commands} | `{format_of(name)}`{lines} | {about} |")
    return "\n".join(rows)


def _first_sentence(name: str) -> str:
    text: str = read_schema(name)["description"]
    return text.partition(": ")[2] or text


def page() -> str:
    """The page with its table made anew."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> None:
    """Write the page, or check it."""
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(PAGE.read_text() != text)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
