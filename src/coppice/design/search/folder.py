"""A folder with what a search found: the front as JSON, and a cabling list for each of its graphs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coppice.design.cabling import CablingLimits, cabling_of
from coppice.design.search.table import GraphEntry
from coppice.errors import InputError
from coppice.files import write_atomically

__all__ = ["write_front"]


def write_front(
    folder: Path, front: Sequence[GraphEntry], limits: CablingLimits, record: Mapping[str, Any]
) -> list[str]:
    """Write a front.

    Args:
        folder: It is made where it does not exist.
        front: The graphs.
        limits: Ports and patch panels of the cabling.
        record: What the file of the front says of it; the figures of the cabling lists join it.

    Returns:
        What was written, a line for each file.

    Raises:
        InputError: If a file cannot be written, or a graph needs more than the limits.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot make the folder {folder} ({error.strerror or error}): choose another place."
        raise InputError(msg) from None
    written = []
    lists: dict[str, dict[str, Any]] = {}
    for entry in front:
        name = re.sub(r"[^a-z0-9^*]+", "-", str(entry.recipe)).strip("-").replace("^", "").replace("*", "x")
        path = folder / f"{entry.steps:03}-steps-{name}.csv"
        made = cabling_of(entry.recipe.build(), limits)
        write_atomically(path, made.csv_text().encode())
        lists[path.name] = made.record()
        panels = f", {made.panels:,} panels" if made.panels else ""
        written.append(f"{path}: {len(made.ends):,} {made.kind}s{panels}")
    path = folder / "front.json"
    write_atomically(path, (json.dumps({**record, "cabling": lists}, indent=2) + "\n").encode())
    return [*written, str(path)]
