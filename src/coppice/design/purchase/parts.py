"""Bills of material: ports, switches and cables of a network, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from coppice.design.purchase.request import Prices

MIDDLE = -1
"""Stands for the rack in the middle of the row, where switches above the leaves are."""


@dataclass(kw_only=True)
class Parts:
    """What a network consists of."""

    nic_ports: int  # Ports of ranks
    racks: int  # Racks in the row
    switches: Counter[int] = field(default_factory=Counter)  # Number of switches by radix
    # Number of full-duplex cables by the racks of their ends
    cables: Counter[tuple[int, int]] = field(default_factory=Counter)
    # Number of one-way fibres by the racks of their ends
    fibres: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def num_switches(self) -> int:
        """Number of switches."""
        return sum(self.switches.values())

    @property
    def num_cables(self) -> int:
        """Number of cables and fibres."""
        return sum(self.cables.values()) + sum(self.fibres.values())

    def cost(self, prices: Prices) -> float:
        """What all of it costs.

        Examples:
            >>> from coppice.design.purchase.request import CableClass, SwitchPrice
            >>> prices = Prices(nic_port=10, switches=[SwitchPrice(radix=4, price=100)],
            ...                 cables=[CableClass(max_m=3, price=1), CableClass(max_m=30, price=5)])
            >>> cables = Counter({(0, 0): 3, (0, 8): 1})
            >>> Parts(nic_ports=4, racks=9, switches=Counter({4: 1}), cables=cables).cost(prices)
            148.0
        """
        price_of = {switch.radix: switch.price for switch in prices.switches}
        total = self.nic_ports * prices.nic_port
        total += sum(count * price_of[radix] for radix, count in self.switches.items())
        total += sum(
            count * prices.cable_price(self._length(ends, prices)) for ends, count in self.cables.items()
        )
        half = sum(
            count * prices.cable_price(self._length(ends, prices)) for ends, count in self.fibres.items()
        )
        return total + half / 2

    def _length(self, ends: tuple[int, int], prices: Prices) -> float:
        middle = self.racks // 2
        a, b = (middle if rack == MIDDLE else rack for rack in ends)
        return prices.slack_m + abs(a - b) * prices.rack_pitch_m
