"""Tables that print with rich on a terminal, as aligned text when piped, and as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

__all__ = ["Table", "number"]


@dataclass(kw_only=True)
class Table:
    """A titled table of strings; columns between the first and the last align right.

    Attributes:
        title: Heading.
        header: Names of the columns.
        rows: Cells by row.
        notes: Sentences below the table.
    """

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Aligned plain text."""
        lines = [self.header, *self.rows]
        width = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        out = [self.title, "-" * len(self.title)]
        for line in lines:
            cells = [line[0].ljust(width[0])]
            cells += [cell.rjust(room) for cell, room in zip(line[1:-1], width[1:-1], strict=True)]
            cells.append(line[-1])
            out.append("  ".join(cells).rstrip())
        return "\n".join([*out, *self.notes]) + "\n"

    def markdown(self) -> str:
        """A Markdown section."""
        lines = [self.header, ("---", *["---:"] * (len(self.header) - 2), "---"), *self.rows]
        body = ["| " + " | ".join(line) + " |" for line in lines]
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"### {self.title}", "", *body, *notes]) + "\n"

    def show(self, console: Console) -> None:
        """Print to a console: rich on a terminal, else plain text of full width."""
        if not console.is_terminal:
            console.file.write(self.text() + "\n")
            console.file.flush()
            return
        table = RichTable(title=self.title, title_justify="left")
        for column, name in enumerate(self.header):
            table.add_column(
                name, justify="right" if 0 < column < len(self.header) - 1 else "left", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*(Text(cell, style="bold red" if "MISS" in cell else "") for cell in row))
        console.print(table)
        for note in self.notes:
            console.print(Text(note))


def number(value: float | None, *, unit: str = "") -> str:
    """Three significant digits, seconds as s, ms or us; `-` for None."""
    if value is None:
        return "-"
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms")):
            if value * factor >= 0.9995:
                return f"{value * factor:.3g} {name}"
        return f"{value * 1e6:.3g} us"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}{unit}"
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}") + unit
