"""Families of graphs by name."""

from __future__ import annotations

from coppice.design.families import abelian, de_bruijn, distance_regular
from coppice.design.families.family import Family

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {
    family.name: family for room in (abelian, distance_regular, de_bruijn) for family in room.FAMILIES
}
