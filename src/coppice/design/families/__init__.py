"""All families of graphs, by the names that recipes call them."""

from __future__ import annotations

from coppice.design.families import (
    circulants,
    complete,
    distance_regular,
    geometries,
    kautz,
    rewired,
    rings,
    tori,
)
from coppice.design.families.family import Family

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for room in (rings, complete, circulants, tori, distance_regular, geometries, kautz, rewired)
    for family in room.FAMILIES
}
