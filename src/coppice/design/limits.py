"""Limits of a cabling, as a record of options."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from coppice.errors import InputError
from coppice.options import option


class CablingLimits(Struct, frozen=True, kw_only=True):
    """Limits of a cabling: ports, panels and positions."""

    ports_per_node: Annotated[int | None, option("ports of a node", ge=1)] = None
    panel_ports: Annotated[
        int | None, option("positions of a patch panel, without which there are none", ge=1)
    ] = None
    max_panels: Annotated[int | None, option("patch panels that there are", ge=1)] = None

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"expected {name} of 1 or more, found {value}.")
        if self.max_panels is not None and self.panel_ports is None:
            raise InputError(
                f"expected the size of the {self.max_panels} panels as well, found none: give `panel_ports`."
            )
