"""Write the schemas of what commands print as JSON, and the page about them.

Usage: python docs/outputs.py [--check]; with --check nothing is written, and the exit code is 1 if a file is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coppice.outputs.formats import OUTPUTS, format_of
from coppice.outputs.schema import SCHEMAS, encoded_schema, schema_path

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
    import json

    text: str = json.loads(encoded_schema(name)).get("description", "")
    return text.partition(": ")[2] or text


def page() -> str:
    """The page with its table made anew."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def files() -> dict[Path, str]:
    """All generated files with their text."""
    return {**{schema_path(name): encoded_schema(name) for name in OUTPUTS}, PAGE: page()}


def main() -> None:
    """Write the files, or check them."""
    made = files()
    strays = [path for path in SCHEMAS.glob("*.json") if path not in made]
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
        sys.exit(1 if stale or strays else 0)
    for path in strays:
        path.unlink()
    for path, text in made.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
