"""Output of the collectives of an imported iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coppice.text import plural, size_text

if TYPE_CHECKING:
    from coppice.iteration.totals import CollectiveTotal

_MOST_SHOWN = 6


def collective_fields(totals: Sequence[CollectiveTotal]) -> list[tuple[str, str]]:
    """Collectives as fields, the largest ones; the others are counted."""
    fields = []
    for each in totals[:_MOST_SHOWN]:
        words = plural(each.count, "time")
        if each.size_bytes:
            words += f", {size_text(each.size_bytes)}"
        if each.ranks:
            words += f" over {plural(each.ranks, 'rank')}"
        if each.group:
            words += f" ({each.group})"
        fields.append((each.collective.replace("_", "-"), words))
    rest = totals[_MOST_SHOWN:]
    if rest:
        fields.append(("others", plural(sum(each.count for each in rest), "time")))
    return fields


def collective_records(totals: Sequence[CollectiveTotal]) -> list[dict[str, Any]]:
    """Collectives as JSON values."""
    names = ("collective", "group", "ranks", "count", "size_bytes")
    return [{name: getattr(each, name) for name in names} for each in totals]
