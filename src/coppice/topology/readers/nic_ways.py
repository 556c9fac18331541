"""PCIe of a machine as nothing but the way between GPUs and NICs, for the option ``pcie=nics``.

Each NIC is used by the GPUs that are nearest to it; where several NICs are equally near to several GPUs, they are dealt
out among these, and a NIC whose nearest GPUs all have nearer ones goes to one of them. Switches and CPUs on the ways
stand twice, once on the way to NICs and once on the way from them, and once for each set of GPUs that shares nothing
with the others, so that a GPU reaches another one only through a NIC that both use.

What ways share stays shared: each direction of each PCIe link, slot and connection between sockets is in the result at
most once and at its own rate. So the whole machine carries whatever the result carries, and no bound on the result is
above the bound with PCIe kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.topology.readers.groups import Groups

Rates = dict[str, dict[str, Fraction]]
"""``rates[src][dst]``, GB/s per direction."""

_End = tuple[str, str, str]  # a switch or CPU, the NIC on whose way it stands, and whether there or back


@dataclass(frozen=True, slots=True)
class NicWays:
    """What is left of PCIe."""

    places: tuple[str, ...]  # For each stand-in, the switch or CPU of the machine that it stands for
    # Ends and rates; an end is a GPU or NIC by name, or a stand-in by number
    links: tuple[tuple[str | int, str | int, Fraction], ...]


@dataclass(slots=True)
class _Way:
    """Shortest ways between a NIC and GPUs: links towards the GPUs, and the GPUs that each node leads to."""

    nic: str
    gpus: tuple[str, ...]
    hops: int
    back: list[tuple[str, str]] = field(default_factory=list)
    leads_to: dict[str, frozenset[str]] = field(default_factory=dict)


def nic_ways(
    rates: Rates, nics: Iterable[str], *, is_gpu: Callable[[str], bool], is_inner: Callable[[str], bool]
) -> NicWays:
    """The ways between NICs and the GPUs nearest to them.

    Args:
        is_gpu: Whether a node is a GPU.
        is_inner: Whether a node is a PCIe switch or a CPU.

    Examples:
        >>> ends = [("gpu0", "pcie0"), ("nic0", "pcie0"), ("nic1", "pcie0")]
        >>> rates = {v: {} for pair in ends for v in pair}
        >>> for a, b in ends:
        ...     rates[a][b] = rates[b][a] = Fraction(24)
        >>> ways = nic_ways(rates, ["nic0", "nic1"], is_gpu="gpu0".__eq__, is_inner="pcie0".__eq__)
        >>> ways.places, len(ways.links)
        (('pcie0',), 6)
    """
    found = [_nearest(rates, nic, is_gpu=is_gpu, is_inner=is_inner) for nic in nics]
    ways = [way for way in _dealt(found) if way.gpus]
    for way in ways:
        _trace(rates, way, is_inner=is_inner)
    return _joined(rates, ways, is_inner)


def _nearest(
    rates: Rates, nic: str, *, is_gpu: Callable[[str], bool], is_inner: Callable[[str], bool]
) -> _Way:
    """The GPUs at the fewest hops from a NIC over switches and CPUs."""
    seen, ring, hops = {nic}, [nic], 0
    while ring:
        hops += 1
        near = dict.fromkeys(
            b for v in ring for b in rates[v] if b not in seen and (is_gpu(b) or is_inner(b))
        )
        gpus = tuple(v for v in near if is_gpu(v))
        if gpus:
            return _Way(nic, gpus, hops)
        seen |= near.keys()
        ring = list(near)
    return _Way(nic, (), hops)


def _dealt(ways: list[_Way]) -> list[_Way]:
    """The same NICs, each with those of its nearest GPUs that use it, in the same order."""
    alike: dict[tuple[int, frozenset[str]], list[_Way]] = {}
    for way in ways:
        alike.setdefault((way.hops, frozenset(way.gpus)), []).append(way)
    chosen: dict[str, _Way] = {}
    served: set[str] = set()
    for _, members in sorted(alike.items(), key=lambda each: (each[0][0], len(each[0][1]))):
        gpus = members[0].gpus
        without = tuple(gpu for gpu in gpus if gpu not in served)
        few = len(members) < len(gpus)
        users = without if few and without else gpus
        for place, way in enumerate(members):
            first, last = (len(users) * each // len(members) for each in (place, place + 1))
            last = first + 1 if few and not without else max(last, first + 1)
            chosen[way.nic] = _Way(way.nic, users[first:last], way.hops)
        served.update(gpus)
    return [chosen[way.nic] for way in ways]


def _trace(rates: Rates, way: _Way, *, is_inner: Callable[[str], bool]) -> None:
    """Note all ways of so few hops between the NIC and its GPUs."""
    rings = [{way.nic}]
    seen = {way.nic}
    for _ in range(way.hops - 1):
        rings.append({b for v in rings[-1] for b in rates[v] if b not in seen and is_inner(b)})
        seen |= rings[-1]
    way.leads_to = {gpu: frozenset([gpu]) for gpu in way.gpus}
    farther = set(way.gpus)
    for ring in reversed(rings):
        for v in sorted(ring):
            beyond = sorted(farther & rates[v].keys())
            way.back += [(v, b) for b in beyond]
            if beyond:
                way.leads_to[v] = frozenset().union(*(way.leads_to[b] for b in beyond))
        farther = ring & way.leads_to.keys()


def _joined(rates: Rates, ways: list[_Way], is_inner: Callable[[str], bool]) -> NicWays:
    """One graph of all ways: links that several of them use are the same link, so their ends are the same stand-ins."""
    uses: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for way in ways:
        for v, b in way.back:
            uses.setdefault((v, b), []).append((way.nic, "back"))
            if v in rates[b]:
                uses.setdefault((b, v), []).append((way.nic, "there"))
    ends = [
        (v, way.nic, turn) for way in ways for v in way.leads_to if is_inner(v) for turn in ("there", "back")
    ]
    stand_ins = Groups(ends)
    for link, users in uses.items():
        for v in link:
            if is_inner(v):
                for user in users[1:]:
                    stand_ins.join((v, *users[0]), (v, *user))
    gpus: dict[Hashable, set[str]] = {}
    leads_to = {way.nic: way.leads_to for way in ways}
    for v, nic, turn in ends:
        gpus.setdefault(stand_ins.find((v, nic, turn)), set()).update(leads_to[nic][v])
    pairs = [[(v, nic, turn) for turn in ("there", "back")] for v, nic, turn in ends if turn == "there"]
    of_one_gpu = [pair for pair in pairs if all(len(gpus[stand_ins.find(end)]) == 1 for end in pair)]
    for there, back in of_one_gpu:
        stand_ins.join(there, back)
    numbers: dict[Hashable, int] = {}
    places: list[str] = []
    links: list[tuple[str | int, str | int, Fraction]] = []
    for link, users in uses.items():
        named: list[str | int] = []
        for v in link:
            if not is_inner(v):
                named.append(v)
                continue
            group = stand_ins.find((v, *users[0]))
            if group not in numbers:
                numbers[group] = len(places)
                places.append(v)
            named.append(numbers[group])
        links.append((named[0], named[1], rates[link[0]][link[1]]))
    return NicWays(tuple(places), tuple(links))
