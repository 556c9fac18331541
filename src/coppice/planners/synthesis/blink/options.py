"""What a user may ask of Blink."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["BlinkOptions"]


class BlinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the method.

    Attributes:
        packing: ``integer``: few trees with whole rates, chosen among those of multiplicative weights, as Blink does.
            ``weights``: all trees of multiplicative weights. ``exact``: the fastest packing, proved.
        unit_gb_per_s: Rate of a whole tree; 0 takes that of one link: what divides the rates of all.
        loss: Share of the rate that whole trees may lose before smaller parts of the unit are tried.
        epsilon: How fast lengths grow in multiplicative weights.
        gap: How near to the optimum multiplicative weights end, a share of it.
        links: Which links trees use. ``auto``: direct links and switches, each by itself where both reach all GPUs
            (NVLink beside PCIe), or what reaches them. ``direct``, ``switched``, ``both``: each by itself.
            ``together``: one packing over all links.
        switch_us: Time that it takes to change peer access from NVLink to PCIe, for the split between them.
        size: Bytes of the data, where that time counts.
        machines: ``auto``: an all-reduce over hosts has three phases. ``flat``: one packing over all links.
        tree_root: Root of the trees of an all-reduce, a rank.
    """

    packing: Literal["integer", "weights", "exact"] = "integer"
    unit_gb_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    loss: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.05
    epsilon: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.1
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.01
    links: Literal["auto", "direct", "switched", "both", "together"] = "auto"
    switch_us: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    size: str = ""
    machines: Literal["auto", "flat"] = "auto"
    tree_root: Annotated[int, msgspec.Meta(ge=0)] = 0
