"""Tables as aligned text, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["columns"]


def columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lines of equal columns.

    Args:
        rows: Cells, the heads first.
        sides: ``l`` or ``r`` for each column.

    Examples:
        >>> columns([("name", "us"), ("ring", "12.5")], "lr")
        ['name    us', 'ring  12.5']
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]
