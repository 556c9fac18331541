"""What a user may ask of Blink."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class BlinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the method."""

    # `integer`: few trees with whole rates, chosen among those of multiplicative weights, as Blink does.
    # `weights`: all trees of multiplicative weights. `exact`: the fastest packing, proved.
    packing: Literal["integer", "weights", "exact"] = "integer"
    # Rate of a whole tree; 0 takes that of one link: what divides the rates of all
    unit_gb_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    # Share of the rate that whole trees may lose before smaller parts of the unit are tried
    loss: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.05
    # How fast lengths grow in multiplicative weights
    epsilon: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.1
    # How near to the optimum multiplicative weights end, a share of it
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.01
    # Which links trees use. `auto`: direct links and switches, each by itself where both reach all GPUs
    # (NVLink beside PCIe), or what reaches them. `direct`, `switched`, `both`: each by itself. `together`:
    # one packing over all links.
    links: Literal["auto", "direct", "switched", "both", "together"] = "auto"
    # Time that it takes to change peer access from NVLink to PCIe, for the split between them
    switch_us: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    size: str = ""  # Bytes of the data, where that time counts
    # `auto`: an all-reduce over hosts has three phases. `flat`: one packing over all links.
    machines: Literal["auto", "flat"] = "auto"
    tree_root: Annotated[int, msgspec.Meta(ge=0)] = 0  # Root of the trees of an all-reduce, a rank
