"""The GPU model that a report names around the table of an smi tool: ``GPU 0: NVIDIA H100 80GB HBM3``, ``gfx950``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel
from coppice.topology.readers.reading import WarningLog
from coppice.topology.readers.smi_table import SmiLine

NVIDIA_NAMES = {
    **{
        name.upper(): name
        for name in ("p100", "v100", "a6000", "a100", "a800", "h100", "h800", "h20", "h200", "b200", "b300")
    },
    "GB200": "b200",
    "GB300": "b300",
}
"""Names in NVIDIA's products, and the models that have their links."""

AMD_NAMES = {
    **{
        name.upper(): name
        for name in ("mi50", "mi100", "mi250", "mi300a", "mi300x", "mi325x", "mi350x", "mi355x")
    },
    "MI60": "mi50",
    "MI250X": "mi250",
    "gfx950": "mi355x",
    "gfx90a": "mi250",
    "gfx908": "mi100",
    "gfx906": "mi50",
}
"""Names in AMD's products and of their architectures; ``gfx942`` is left out, which several products share."""

_PRODUCT = re.compile(r"NVIDIA|Tesla|\bGPU\s?[0-9]+:|AMD|Instinct|\bgfx[0-9]|Card (?:[Ss]eries|[Mm]odel|SKU)")


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A model that a text names."""

    model: GpuModel  # The model
    text: str  # Its name there
    line: int  # The first line that has it


def named_model(lines: Sequence[SmiLine], names: Mapping[str, str], log: WarningLog) -> NamedGpu | None:
    """The one GPU model that lines about products name, or None; several are told.

    Args:
        names: Models by the names that products have.

    Examples:
        >>> lines = [SmiLine(1, "Driver of NVIDIA"), SmiLine(2, "GPU 0: NVIDIA H100 80GB HBM3")]
        >>> found = named_model(lines, NVIDIA_NAMES, WarningLog("a.txt"))
        >>> found.model.name, found.line
        ('h100', 2)
    """
    words = re.compile(rf"\b({'|'.join(sorted(names, key=len, reverse=True))})\b")
    found: dict[str, NamedGpu] = {}
    for line in lines:
        if _PRODUCT.search(line.text) is None:
            continue
        hits = words.findall(line.text)
        products = [hit for hit in hits if not hit.startswith("gfx")] or hits
        for hit in products:
            model = GPU_MODELS[names[hit]]
            found.setdefault(model.name, NamedGpu(model, hit, line.number))
    exact = [named for named in found.values() if not named.text.startswith("gfx")] or list(found.values())
    if len(exact) > 1:
        log.add(
            f"the text names several GPU models ({', '.join(named.text for named in exact)}): none is taken from it",
            exact[1].line,
        )
        return None
    return exact[0] if exact else None
