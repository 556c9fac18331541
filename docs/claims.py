"""Write the page of published claims: `docs/claims.md`, from what `coppice claims --json` prints.

Usage: python docs/claims.py [--check | FILE]; all claims are measured (minutes), or read from FILE, what `coppice
claims --json` printed. With --check nothing is measured or written, and the exit code is 1 if a claim is missing or
its record has changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coppice.published.measuring import commands_of, judged_claims
from coppice.published.records import Claim, claims
from coppice.published.verdicts import VERDICTS
from coppice.text import number

PAGE = Path(__file__).with_name("claims.md")
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"


def sections(rows: Iterable[Mapping[str, Any]]) -> str:
    """Claims of each system, with figures and verdicts."""
    parts: list[str] = []
    found = list(rows)
    counts = [f"{sum(row['verdict'] == verdict for row in found)} {verdict}" for verdict in VERDICTS]
    parts.append(f"{len(found)} claims: {', '.join(counts)}.\n")
    for system in dict.fromkeys(row["system"] for row in found):
        parts.append(f"## {system}\n")
        parts.append(
            "| claim | source | published | measured | verdict | command | why |\n" + "| --- " * 7 + "|"
        )
        for row in found:
            if row["system"] == system:
                when = f" ({row['date']})" if row["date"] else ""
                commands = "<br>".join(f"`{each}`" for each in row["command"].split("; ") if each)
                cells = (
                    *stated(row),
                    "" if row["measured"] is None else figure(row["measured"], row) + when,
                    row["verdict"],
                    commands,
                    row["why"],
                )
                parts.append("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def stated(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What of a row does not depend on what is measured: claim, source and published figure."""
    source = f"{row['source']} ({row['evidence']})" if row["evidence"] != "read" else row["source"]
    published = "holds" if row["published"] is None else figure(row["published"], row)
    return row["claim"], source, published


def figure(value: float, row: Mapping[str, Any]) -> str:
    """A figure with its unit."""
    if row["published"] is None:
        return "holds" if value == 1 else "does not hold"
    shown = f"{value:.0f}" if value == round(value) else number(value)
    return f"{shown} {row['unit']}".strip()


def measured() -> list[dict[str, Any]]:
    """All claims, measured now."""
    rows = []
    for finding in judged_claims(claims()):
        sys.stderr.write(f"{finding.verdict:12} {finding.claim.system}: {finding.claim.claim}\n")
        rows.append(finding.record())
    return rows


def missing(text: str) -> list[str]:
    """Claims that the page does not have as their records are."""

    def line(claim: Claim) -> str:
        row = {"source": claim.source, "evidence": claim.evidence, "published": claim.published}
        return "| " + " | ".join(stated({**row, "claim": claim.claim, "unit": claim.unit})) + " |"

    def shown(claim: Claim) -> bool:
        commands = all(f"`{command}`" in text for command in commands_of(claim))
        return line(claim).replace("|", "\\|") in text.replace("|", "\\|") and commands

    return [claim.claim for claim in claims() if not shown(claim)]


def main() -> None:
    """Write the page, or check it."""
    text = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(1 if missing(text) else 0)
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"] if len(sys.argv) > 1 else measured()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{sections(rows)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
