"""Skewed routing of tokens to experts: what it costs a step, and what placement, replicas and capacity bring.

Routing is a distribution (the k-th most popular expert of a layer gets 1/k^s of the tokens, in an order drawn for each
layer) or a recording of tokens for experts, layer and step (:mod:`coppice.bounds.demands`). All ranks of a group that
shards the experts wait for the busiest of them, in every layer: experts take as much longer as it has more tokens, and
exchanges as planned at run time (cpp/alltoallv), or directly. Both are means over layers and steps. Tokens of a rank go
to experts by these shares whatever the rank, unless the recording tells ranks apart. Stages of a pipeline are slowed
alike, and noise of single tokens is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.rates import RankRates, planned_blocks
from coppice.bounds.demands import RoutingRecord, parse_routing
from coppice.bounds.skews import Popularity, parse_popularity
from coppice.errors import InputError
from coppice.files import decode_utf8, read_bytes
from coppice.iteration.costs.group import crossing
from coppice.iteration.layout import Layout
from coppice.iteration.machine import Cluster
from coppice.iteration.transformer import Transformer

PLACEMENTS = ("given", "popular")
_CAPACITIES = (2.0, 1.25)
_DRAWS = 16
"""Layers that are drawn of a distribution."""
_TOKENS = 1_000_000
"""Of each rank, in exchanges that are priced."""


@dataclass(frozen=True, kw_only=True)
class RoutingSample:
    """Tokens of one layer in one step."""

    layer: int  # Which layer
    shares: NDArray[np.float64]  # Share of all tokens for each expert
    rows: NDArray[np.float64]  # Share of a rank's tokens for each expert; one row where ranks are alike
    weight: NDArray[np.float64]  # Tokens of each of these ranks over those of an average one
    placement: NDArray[np.int64]  # Rank of each expert as it is given


@dataclass(frozen=True, kw_only=True)
class RoutedLoad:
    """What the busiest rank has over an average one, on average over layers and steps."""

    name: str  # Which placement, capacity and exchange
    busiest: float  # Tokens of the busiest rank over the average
    exchange: float  # Time of an exchange over that of equal blocks
    dropped: float = 0.0  # Share of tokens that experts have no slot for
    copies: int = 0  # Experts that each rank holds more
    capacity: float = 0.0  # Slots of an expert over tokens of an average one; 0: no limit

    def model(self, model: Transformer) -> Transformer:
        """The model as it is slowed by this load.

        Examples:
            >>> from coppice.iteration.models import model_named
            >>> load = RoutedLoad(name="", busiest=2.0, exchange=1.5)
            >>> load.model(model_named("deepseek-v3")).routed_share
            16.0
        """
        if model.capacity_factor:  # slots are padded: as many for all, whoever is popular
            return replace(model, capacity_factor=self.capacity)
        return replace(model, busiest_experts=self.busiest, busiest_exchange=self.exchange)


def routing_samples(text: str, model: Transformer, layout: Layout) -> list[RoutingSample]:
    """Samples of a distribution such as ``zipf:1.1`` or ``hot:4``, or of a recording.

    Raises:
        InputError: If there are no experts that ranks share out, or a recording has another number of experts.

    Examples:
        >>> from coppice.iteration.models import model_named
        >>> layout = Layout(data=64, expert=64, global_batch=64)
        >>> len(routing_samples("zipf:1", model_named("deepseek-v3"), layout))
        16
    """
    if not model.experts or layout.expert == 1:
        raise InputError(
            "expected a mixture whose experts are on several ranks for `routing`, found none: give `ep`, or leave "
            "routing out."
        )
    popular = parse_popularity(text, option="routing")
    even = np.arange(model.experts) * layout.expert // model.experts
    if popular is not None:
        return [
            RoutingSample(
                layer=layer,
                shares=shares,
                rows=shares[None, :],
                weight=np.ones(1),
                placement=even,
            )
            for layer, shares in enumerate(_drawn(popular, model.experts))
        ]
    data = read_bytes(text, what="the routing", hint="name a recording, or zipf:1.1")
    records = parse_routing(decode_utf8(data, file=text), where=Path(text).name)
    return [
        _recorded(record, model, layout, where=f"{Path(text).name}:{number}")
        for number, record in enumerate(records, start=1)
    ]


def _drawn(popular: Popularity, experts: int) -> Iterator[NDArray[np.float64]]:
    """Shares of experts, in an order of its own for each layer."""
    rng = np.random.default_rng(0)
    shares = popular.shares(experts)
    for _ in range(_DRAWS):
        yield shares[rng.permutation(experts)]


def _recorded(record: RoutingRecord, model: Transformer, layout: Layout, *, where: str) -> RoutingSample:
    table = record.table(where=where).astype(np.float64)
    if table.shape[1] != model.experts:
        raise InputError(
            f"expected counts of {model.experts} experts at {where}, found {table.shape[1]}: record this model."
        )
    if not table.sum():
        raise InputError(f"expected tokens at {where}, found none: leave the line out.")
    if len(table) != layout.expert:  # of another number of ranks: they are told together
        table = table.sum(axis=0, keepdims=True)
    sums = table.sum(axis=1)
    return RoutingSample(
        layer=record.layer,
        shares=table.sum(axis=0) / table.sum(),
        rows=np.divide(table, sums[:, None], out=np.zeros_like(table), where=sums[:, None] > 0),
        weight=sums / sums.mean(),
        placement=record.places(layout.expert, where=where),
    )


def popular_placement(
    shares: NDArray[np.float64], ranks: int, *, copies: int = 0, width: int = 1
) -> list[tuple[int, int, float]]:
    """Experts on ranks by popularity: (expert, rank, share of its tokens), as many slots on each rank.

    With copies, the experts that have the most tokens a slot get one slot more each, and tokens of an expert are dealt
    to its slots alike (the redundant experts of DeepSeek-V3, arXiv 2412.19437, section 3.4). Slots go, the fullest
    first, to the rank with the fewest tokens that has room, of equal ones to that in the box with the fewest.

    Args:
        copies: Slots of each rank beyond its part of the experts.
        width: Ranks of a box.

    Examples:
        >>> popular_placement(np.array([0.4, 0.3, 0.2, 0.1]), 2)
        [(0, 0, 1.0), (1, 1, 1.0), (2, 1, 1.0), (3, 0, 1.0)]
        >>> [rank for expert, rank, share in popular_placement(np.array([0.8, 0.2]), 2, copies=1) if expert == 0]
        [0, 1]
    """
    slots = np.ones(len(shares), dtype=np.int64)
    for _ in range(copies * ranks):
        most = np.where(slots < ranks, shares / slots, -1.0)
        slots[int(np.argmax(most))] += 1
    parts = sorted(
        (
            (float(shares[expert]) / int(slots[expert]), expert)
            for expert in range(len(shares))
            for _ in range(slots[expert])
        ),
        key=lambda each: (-each[0], each[1]),
    )
    room = [-(-len(parts) // ranks)] * ranks
    load, in_box = [0.0] * ranks, [0.0] * -(-ranks // width)
    held: list[set[int]] = [set() for _ in range(ranks)]
    found = []
    for tokens, expert in parts:
        fits = [rank for rank in range(ranks) if room[rank] and expert not in held[rank]]
        rank = min(
            fits or [rank for rank in range(ranks) if room[rank]],
            key=lambda each: (load[each], in_box[each // width], each),
        )
        room[rank] -= 1
        load[rank] += tokens
        in_box[rank // width] += tokens
        held[rank].add(expert)
        found.append((expert, rank, 1.0 / int(slots[expert])))
    return found


def routed_load(
    samples: Sequence[RoutingSample],
    model: Transformer,
    layout: Layout,
    cluster: Cluster,
    *,
    placement: str = "given",
    copies: int = 0,
    capacity: float = 0.0,
    planned: bool = True,
) -> RoutedLoad:
    """What samples cost under a placement.

    Args:
        placement: `given` by the samples, or `popular`: packed by the mean popularity of the layer.
        copies: Slots of each rank beyond its part of the experts, with `popular`.
        capacity: Slots of an expert over tokens of an average one, beyond which tokens are dropped; 0: that of the
            model, which pads to it, and else no limit.
        planned: Exchanges are planned at run time; otherwise they go directly.
    """
    if placement not in PLACEMENTS:
        raise InputError(f"expected `placement` given or popular, found {placement!r}: take one of them.")
    ranks, experts, padded = layout.expert, model.experts, model.capacity_factor > 0
    capacity = capacity or model.capacity_factor
    rates = _rates(layout, cluster)
    usual: dict[int, list[NDArray[np.float64]]] = {}
    for sample in samples:
        usual.setdefault(sample.layer, []).append(sample.shares)
    places: dict[int, NDArray[np.float64]] = {}
    if placement == "popular":
        for layer, shares in usual.items():
            places[layer] = np.zeros((experts, ranks))
            for expert, rank, share in popular_placement(
                np.mean(shares, axis=0), ranks, copies=copies, width=rates.width
            ):
                places[layer][expert, rank] += share
    busiest, exchange, dropped = [], [], []
    even = _seconds(np.full((ranks, ranks), 1 / ranks), rates, planned=planned)
    for sample in samples:
        at = places.get(sample.layer)
        if at is None:
            at = np.zeros((experts, ranks))
            at[np.arange(experts), sample.placement] = 1.0
        kept = np.ones(experts)
        if capacity:
            room = capacity / experts
            kept = np.minimum(1.0, room / np.maximum(sample.shares, 1e-300))
        rows = (sample.rows * kept) @ at * sample.weight[:, None]
        table = np.broadcast_to(rows, (ranks, ranks)) if len(rows) == 1 else rows
        busiest.append(1.0 if padded else float(table.sum(axis=0).max()))
        same = padded or not even
        exchange.append(1.0 if same else _seconds(table, rates, planned=planned) / even)
        dropped.append(1 - float((sample.shares * kept).sum()) if capacity else 0.0)
    words = [placement if not copies else f"{placement}, {copies} more on each rank"]
    words += [f"capacity {capacity:g}"] if capacity else []
    words += [] if planned else ["direct exchange"]
    return RoutedLoad(
        name=", ".join(words),
        busiest=float(np.mean(busiest)),
        exchange=float(np.mean(exchange)),
        dropped=float(np.mean(dropped)),
        copies=copies,
        capacity=capacity,
    )


def _seconds(table: NDArray[np.float64], rates: RankRates, *, planned: bool) -> float:
    """Time of an exchange of shares of a rank's tokens, in any unit."""
    counts = np.rint(table * _TOKENS).astype(np.int64)
    found = planned_blocks(rates, counts)
    load, rate = found.busiest() if planned else found.busiest_directly()
    return load / rate


def _rates(layout: Layout, cluster: Cluster) -> RankRates:
    """Boxes and rates of a group that shards experts, as the balanced exchange is priced."""
    ranks, stride, box = layout.expert, layout.tensor, cluster.device.box
    inside = min(ranks, max(1, box // stride))
    near = cluster.near_rate(inside, stride)
    far = near
    out = crossing(ranks, stride, box)
    if out.groups and out.exchanged:
        leaves = (ranks - inside) / ranks
        far = leaves * cluster.nic_bytes_per_second * cluster.calibration.far_share / out.exchanged
    return RankRates(
        width=next(
            each for each in range(inside, 0, -1) if ranks % each == 0
        ),  # boxes that are not full are uneven
        order=np.arange(ranks, dtype=np.int32),
        crossing=True,
        near=np.full(ranks, max(1, round(near / 1e6)), dtype=np.int64),
        far=np.full(ranks, max(1, round(far / 1e6)), dtype=np.int64),
        denominator=1000,
    )


@dataclass(frozen=True, kw_only=True)
class RoutedStep:
    """A step under a load."""

    load: RoutedLoad  # The load
    seconds: float  # Time of an iteration


def routed_variants(
    samples: Sequence[RoutingSample], model: Transformer, layout: Layout, cluster: Cluster, *, placement: str
) -> list[RoutedLoad]:
    """Loads to compare: as given, directly, placed by popularity, with copies, and with capacities."""

    def load(**options: Any) -> RoutedLoad:
        return routed_load(samples, model, layout, cluster, **options)

    found = [load(placement=placement), load(placement=placement, planned=False)]
    others = [each for each in PLACEMENTS if each != placement]
    found += [load(placement=each) for each in others]
    found.append(load(placement="popular", copies=1))
    capacities = [each for each in _CAPACITIES if each != model.capacity_factor]
    found += [load(placement=placement, capacity=each) for each in capacities]
    return found
