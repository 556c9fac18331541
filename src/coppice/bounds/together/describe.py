"""A bound on concurrent groups in text and as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.bounds.together.least import TogetherBound
from coppice.text import plural, seconds_text
from coppice.topology.model import NodeKind

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import GroupsBoundJson, PriorityClassJson


def limit_words(found: TogetherBound) -> str:
    """Describe the limit of the groups: which bytes must cross which links.

    Args:
        found: The bound, of which something has to move.
    """
    if found.priced is not None:
        proved = "" if found.for_schedules else ", for all-reduces that are made of trees"
        return f"no single cut: {plural(len(found.links), 'link')} together{proved}: {_links(found)}"
    if not found.sets:
        return "nothing has to move"
    way = "into" if found.entering else "out of"
    names = " and ".join(found.demands[number].name for number in found.counted)
    amount = float(sum(found.needed_bytes, Fraction(0)) / 10**9)
    rate = float(found.gb_per_s)
    spared = float(found.spared_bytes / 10**9)
    but = f" all but {spared:.4g} GB over" if spared else ""
    return (
        f"{amount:.4g} GB of {names} go {way} {_sets(found)}:{but} {_links(found)}, {rate:.6g} GB/s together"
    )


def class_fields(bounds: Sequence[TogetherBound]) -> list[tuple[str, str]]:
    """Lines about all classes of priority but the last: when each may be done."""
    names = _classes(bounds)
    return [
        (f"first {' and '.join(own)}" if not place else f"then {' and '.join(own)}", _class_words(each))
        for place, (own, each) in enumerate(zip(names[:-1], bounds[:-1], strict=True))
    ]


def _class_words(found: TogetherBound) -> str:
    return f"{seconds_text(float(found.seconds))} at least: {limit_words(found)}"


def class_records(bounds: Sequence[TogetherBound]) -> list[PriorityClassJson]:
    """Classes of priority as JSON values, the first class first."""
    return [
        {
            "kinds": own,
            "least_seconds": float(each.seconds),
            "least_exact_seconds": str(each.seconds),
            "limited_by": limit_words(each),
        }
        for own, each in zip(_classes(bounds), bounds, strict=True)
    ]


def _classes(bounds: Sequence[TogetherBound]) -> list[list[str]]:
    """Names of the demands that each bound has and those before it lack."""
    counts = [0, *(len(each.demands) for each in bounds)]
    return [
        [demand.name for demand in each.demands[counts[place] : counts[place + 1]]]
        for place, each in enumerate(bounds)
    ]


def shares_of(found: TogetherBound) -> dict[str, float]:
    """Share of each demand, by name, of the bytes that the bound counts."""
    total = sum(found.needed_bytes, Fraction(0))
    shares: dict[str, float] = {}
    for number, amount in zip(found.counted, found.needed_bytes, strict=True):
        name = found.demands[number].name
        shares[name] = shares.get(name, 0.0) + float(amount / total)
    return shares


def together_record(found: TogetherBound) -> GroupsBoundJson:
    """Everything that proves the bound as JSON values: fractions as text, nodes and links by name."""
    topology = found.topology
    limiting = [topology.link_name(link) for link in found.links]
    needed = {
        found.demands[number].name: str(amount)
        for number, amount in zip(found.counted, found.needed_bytes, strict=True)
    }
    return {
        "topology": topology.name,
        "topology_sha256": topology.sha256,
        "ranks": topology.num_ranks,
        "least_seconds": float(found.seconds),
        "least_exact_seconds": str(found.seconds),
        "least_seconds_exact": str(found.seconds),
        "limited_by": limit_words(found),
        "sets": [[topology.node_ids[node] for node in nodes] for nodes in found.sets],
        "direction": "in" if found.entering else "out",
        "limiting_links": limiting,
        "links": limiting,
        "gb_per_s": str(found.gb_per_s),
        "needed_bytes": needed,
        "bytes": needed,
        "demands": [
            {
                "name": demand.name,
                "collective": demand.collective,
                "group_count": len(demand.groups),
                "groups": len(demand.groups),
                "ranks": demand.members,
                "most_bytes": str(max(demand.size_bytes)),
            }
            for demand in found.demands
        ],
    }


def _sets(found: TogetherBound) -> str:
    """The sets in words."""
    topology = found.topology
    first = found.sets[0]
    hosts = {int(topology.host[node]) for node in first}
    if len(first) == 1:
        name, kind = topology.node_ids[first[0]], "GPU"
    elif len(hosts) == 1 and min(hosts) >= 0:
        name, kind = topology.node_ids[first[0]].split("/")[0], "box"
    else:
        ranks = sum(topology.rank[node] >= 0 for node in first)
        name, kind = f"the {plural(int(ranks), 'GPU')} around {topology.node_ids[first[0]]}", "set"
    if len(found.sets) == 1:
        return name
    many = "boxes" if kind == "box" else f"{kind}s"
    return f"each of {len(found.sets)} {many} ({name} and so on)"


def _links(found: TogetherBound) -> str:
    """The links in words, by what they join and how fast they are."""
    topology = found.topology
    kinds: Counter[str] = Counter()
    for link in found.links:
        ends = [
            NodeKind(int(topology.kind[node])).name.lower() if topology.kind[node] != NodeKind.GPU else "GPU"
            for node in (topology.src[link], topology.dst[link])
        ]
        hosts = topology.host[topology.src[link]], topology.host[topology.dst[link]]
        where = " in the box" if hosts[0] == hosts[1] >= 0 else ""
        names = [end.replace("nic", "NIC") for end in ends]
        kinds[f"of {float(topology.gb_per_s(link)):.6g} GB/s from {names[0]} to {names[1]}{where}"] += 1
    return ", ".join(f"{plural(count, 'link')} {name}" for name, count in kinds.most_common(3))
