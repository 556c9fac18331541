"""The best split of a tensor between in-network aggregation and a host algorithm that run at once, exactly.

Each way of doing it occupies resources (links, the switch, a server) for so long for each byte. With a share q in the
network resource i is busy for q a_i + (1 - q) b_i, the time of a byte is the largest of these, and the best q is at an
end or where two lines cross: a linear program in one variable, solved in fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.systems.estimate import AggregationCase
from coppice.innetwork.systems.hosts import ring_share
from coppice.innetwork.systems.registry import estimate
from coppice.text import suggestion

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import SplitJson

HOSTS = ("ring", "ps")
"""Ways in which hosts reduce what is not added in the network."""

_LARGE = 2**40
"""Bytes of a tensor so long that its rate is that of an endless one."""


@dataclass(frozen=True, kw_only=True)
class BestSplit:
    """The best share of a tensor to aggregate in the network."""

    share: Fraction  # Part of the tensor that is added in the network
    inv_rate: Fraction  # Time for each byte with it, in 1 / (GB/s)
    network: Fraction  # The same with all of it in the network
    hosts: Fraction  # The same with all of it by hosts
    limits: tuple[str, ...]  # Resources that are busy all the time

    @property
    def gain(self) -> Fraction:
        """Speedup over the better of the two alone: 1 where a split brings nothing."""
        return min(self.network, self.hosts) / self.inv_rate

    @property
    def words(self) -> str:
        """Describe the result in a sentence."""
        busy = " and ".join(self.limits[:2]) + (
            f" and {len(self.limits) - 2} more" if len(self.limits) > 2 else ""
        )
        where = {Fraction(0): "all by hosts", Fraction(1): "all in the network"}.get(
            self.share, f"{float(self.share):.1%} in the network, the rest by hosts"
        )
        verb = "limits" if len(self.limits) == 1 and not self.limits[0].endswith("links") else "limit"
        if self.gain == 1:
            return f"{where}: {busy} {verb} it, and a split brings nothing"
        return f"{where}: {float(self.gain):.3g} times as fast as the better alone; {busy} {verb} it"

    def record(self) -> SplitJson:
        """The figures as JSON values."""
        return {
            "share_in_network": float(self.share),
            "share_in_network_exact": str(self.share),
            "share_exact": str(self.share),
            "load_algbw_gb_per_s": float(1 / self.inv_rate),
            "gb_per_s": float(1 / self.inv_rate),
            "network_gb_per_s": float(1 / self.network),
            "hosts_gb_per_s": float(1 / self.hosts),
            "gain": float(self.gain),
            "limits": list(self.limits),
            "words": self.words,
        }


def best_split(network: Mapping[str, Fraction], hosts: Mapping[str, Fraction]) -> BestSplit:
    """Find the share in the network that takes the least time; of equal ones the largest.

    Args:
        network: Time for each byte for which a resource is busy with all of it in the network, by its name.
        hosts: The same with all of it by hosts.

    Examples:
        A switch that adds half of what the links carry, beside a ring of four:

        >>> third = best_split({"links": Fraction(1), "switch": Fraction(2)}, {"links": Fraction(3, 2)})
        >>> str(third.share), str(third.inv_rate), third.words
        ('3/5', '6/5', '60.0% in the network, the rest by hosts: 1.25 times as fast as the better alone; links and switch limit it')

        Where the links limit both, nothing is gained:

        >>> best_split({"links": Fraction(1)}, {"links": Fraction(3, 2)}).words
        'all in the network: links limit it, and a split brings nothing'
    """  # noqa: E501
    nothing = Fraction(0)
    names = [*dict.fromkeys([*network, *hosts])]
    lines = {name: (network.get(name, nothing), hosts.get(name, nothing)) for name in names}
    if not any(network.values()) or not any(hosts.values()):
        raise InputError("expected both ways to occupy something, found one that takes no time.")
    distinct = sorted(set(lines.values()))
    share = nothing
    while share < 1:
        top = max(share * a + (1 - share) * b for a, b in distinct)
        rising = max((a - b, a, b) for a, b in distinct if share * a + (1 - share) * b == top)
        slope = rising[0]
        if slope > 0:
            break
        crossings = [(b - rising[2]) / (slope - (a - b)) for a, b in distinct if a - b > slope]
        share = min([Fraction(1), *(each for each in crossings if each > share)])
    busy = {name: share * a + (1 - share) * b for name, (a, b) in lines.items()}
    inv_rate = max(busy.values())
    return BestSplit(
        share=share,
        inv_rate=inv_rate,
        network=max(network.values()),
        hosts=max(hosts.values()),
        limits=tuple(name for name in names if busy[name] == inv_rate),
    )


@checked
def split(system: str, case: AggregationCase, *, beside: str = "ring") -> BestSplit:
    """Best in-network share of a large tensor for a system, while hosts reduce the rest over the same links.

    A ring takes the workers' links 2 (n - 1) / n times, so that it only helps where the switch is the limit; a
    parameter server takes them once, as the switch does, and its own link n times each way (Zhu et al., 2024).

    Args:
        beside: ``ring`` or ``ps``.

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2), slots=32)
        >>> round(float(split("switchml", case).gain), 3), split("sharp", case).words
        (1.288, "all in the network: workers' links limit it, and a split brings nothing")
    """
    if beside not in HOSTS:
        raise InputError(f"expected `beside` as ring or ps, found {beside!r}: {suggestion(beside, HOSTS)}")
    if case.gpus > 1:
        raise InputError(
            f"expected boxes of one GPU for a split, found {case.gpus}: leave out `gpus`, or take a topology."
        )
    found = estimate(system, case, _LARGE)
    links, switch, server = "workers' links", "the switch with its window", "the server's link"
    network = {links: found.link_bytes / case.gb_per_s}
    if found.gb_per_s * float(network[links]) < 1 - 1e-9:
        network[switch] = 1 / Fraction(found.gb_per_s).limit_denominator(10**9)
    if beside == "ring":
        hosts = {links: ring_share(case.workers) / case.gb_per_s}
    else:
        hosts = {links: 1 / case.gb_per_s, server: case.workers / case.server}
    return best_split(network, hosts)
