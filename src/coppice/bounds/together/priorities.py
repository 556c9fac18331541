"""Groups that go first: classes of priority, and the least time until each class is done.

Theory. A network that serves classes strictly lets no class wait for a later one, so that with class k all classes
before it are done. The bound on everything that the classes 1 .. k exchange is therefore one on that end, whatever
plans do. It is larger where classes before have ends of their own that are to be kept: in the time that they have,
links that they alone can take carry only so much, and the rest lies on links that class k needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import TogetherBound, least_time
from coppice.bounds.together.priced import PricedProof, link_prices, priced_time
from coppice.errors import InputError
from coppice.topology.model import Topology

_AND = "+"


def classes_of(demands: Sequence[GroupDemand], priority: str | None) -> list[list[GroupDemand]]:
    """Demands by class, the first class first.

    Args:
        demands: What groups exchange.
        priority: Kinds of groups from the first to the last, such as ``tp,dp``, ``tp+pp`` for two of one class; what is
            not named goes last. A word stands for all demands that begin with it. None: all are of one class.

    Raises:
        InputError: If a word names no demand, or a demand is named twice.

    Examples:
        >>> pairs = np.array([[0, 1]])
        >>> given = [GroupDemand(name, "all_reduce", pairs, [Fraction(1)]) for name in ("tp", "dp", "dp of experts")]
        >>> [[each.name for each in own] for own in classes_of(given, "dp")]
        [['dp', 'dp of experts'], ['tp']]
    """
    if priority is None:
        return [list(demands)]
    found: list[list[GroupDemand]] = []
    left = list(demands)
    names = ", ".join(dict.fromkeys(each.name for each in demands))
    for one in priority.split(","):
        words = [word.strip() for word in one.split(_AND)]
        for word in words:
            if not any(_names(word, each) for each in left):
                again = "it again" if any(_names(word, each) for each in demands) else f"{word!r}"
                raise InputError(
                    f"expected kinds of groups in `priority`, each once, of {names}, found {again}: leave it out."
                )
        found.append([each for each in left if any(_names(word, each) for word in words)])
        left = [each for each in left if each not in found[-1]]
    return [*found, left] if left else found


def _names(word: str, demand: GroupDemand) -> bool:
    return demand.name == word or demand.name.startswith(f"{word} ")


def least_times(
    topology: Topology,
    classes: Sequence[Sequence[GroupDemand]],
    *,
    in_network: bool = False,
    ends: Sequence[Fraction] = (),
    proofs: Sequence[PricedProof] = (),
) -> list[TogetherBound]:
    """The least time until each class is done, where those before it are as early as they can be.

    Args:
        topology: The network.
        classes: Demands by class, the first class first.
        in_network: Switches may copy and add.
        ends: Seconds in which each class is done, as some plans have it; empty: its least time.
        proofs: Prices of links for each class, which may prove more than sets of nodes; empty: none.

    Returns:
        A bound for each class on the time until it and all before it are done.

    Examples:
        Groups in boxes that go first are done in 5.4 ms with the help of the NICs, for which pairs across boxes wait:

        >>> from coppice.topology.presets import preset
        >>> across = np.array([[rank, rank + 8] for rank in range(8)])
        >>> inside = np.arange(16).reshape(2, 8)
        >>> demands = [GroupDemand("dp", "all_reduce", across, [Fraction(10**9)] * 8),
        ...            GroupDemand("tp", "all_reduce", inside, [Fraction(10**9)] * 2)]
        >>> found = least_times(preset("dgx-a100", boxes=2), classes_of(demands, "tp,dp"))
        >>> [round(float(each.seconds), 6) for each in found]
        [0.005385, 0.045385]
    """
    found: list[TogetherBound] = []
    done: list[GroupDemand] = []
    until: list[Fraction | None] = []
    for place, own in enumerate(classes):
        done += own
        first = least_time(topology, done, in_network=in_network)
        bounds = [first]
        if place:
            held = [*until, *(None for _ in own)]
            bounds.append(least_time(topology, done, in_network=in_network, until=held))
            before = found[-1]
            more = len(first.demands) - len(before.demands)
            bounds.append(replace(before, demands=first.demands, until=before.until + (None,) * more))
        if proofs:
            known = [ends[k] if ends else found[k].seconds for k in range(place)]
            bounds.append(of_prices(topology, first.demands, replace(proofs[place], ends=tuple(known))))
        found.append(max(bounds, key=lambda each: each.seconds))
        until += [ends[place] if ends else found[-1].seconds] * len(own)
    return found


def of_prices(topology: Topology, demands: Sequence[GroupDemand], proof: PricedProof) -> TogetherBound:
    """The bound that prices of links prove."""
    time = priced_time(topology, proof)
    return TogetherBound(
        topology=topology,
        demands=tuple(demands),
        seconds=time.seconds,
        links=tuple(np.flatnonzero(link_prices(topology, proof)[-1]).tolist()),
        priced=proof,
        for_schedules=time.for_schedules,
    )
