"""Networks to buy: their sizes, bills and times by hand on small cases, and bad requests."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from coppice.collectives import Collective
from coppice.design.purchase.market import compare_networks, csv_text, draw
from coppice.design.purchase.offers import MIDDLE, Offer, Parts, offers
from coppice.design.purchase.performance import bound_us, slowdown, timing
from coppice.design.purchase.request import (
    CableClass,
    Failures,
    Prices,
    SwitchPrice,
    TrainingWorkload,
    Use,
    read_prices,
    read_workload,
)
from coppice.errors import InputError
from coppice.topology.model import NodeKind

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALL = Use(collective=Collective.ALL_GATHER, size_bytes=2**20)


def prices(*radixes: int) -> Prices:
    return Prices(
        nic_port=10,
        switches=[SwitchPrice(radix=radix, price=100 * radix) for radix in radixes],
        cables=[CableClass(max_m=3, price=1), CableClass(max_m=100, price=4)],
        hosts_per_rack=4,
    )


def workload(**fields: object) -> TrainingWorkload:
    given = {"ranks": 8, "collectives": [ALL], "gb_per_s": Fraction(10), "latency_us": 0.0, **fields}
    return TrainingWorkload(**given)  # type: ignore[arg-type]


def named(made: TrainingWorkload, listed: Prices, *ratios: int) -> dict[str, Offer]:
    found = offers(made, listed, oversubscriptions=[Fraction(ratio) for ratio in ratios or (1,)])
    return {offer.name: offer for offer in found}


def check(offer: Offer, made: TrainingWorkload) -> None:
    """Ports of switches are enough for their cables, and rates are those of the cables."""
    topology = offer.topology
    assert topology.num_ranks == made.ranks
    outside = topology.host[topology.src] != topology.host[topology.dst]
    outside |= (topology.kind[topology.src] == NodeKind.SWITCH) & (topology.host[topology.src] < 0)
    rate = sum(int(c) for c in topology.capacity[outside]) / topology.denominator
    cables = 2 * sum(offer.parts.cables.values()) + sum(offer.parts.fibres.values())
    assert rate <= float(made.gb_per_s) * cables * 1.0001
    sent = Counter[int]()
    for src, capacity in zip(topology.src.tolist(), topology.capacity.tolist(), strict=True):
        if topology.kind[src] == NodeKind.SWITCH and topology.host[src] < 0:
            sent[src] += capacity
    switches = sum((topology.kind == NodeKind.SWITCH) & (topology.host < 0))
    assert switches == offer.parts.num_switches
    if sent:
        radix = max(offer.parts.switches)
        assert max(sent.values()) / topology.denominator <= float(made.gb_per_s) * radix * 1.0001


def test_one_switch_is_enough_for_few_ports() -> None:
    found = named(workload(), prices(8, 16), 1, 2)
    assert [name for name in found if "clos" in name] == ["clos, radix 8"]
    offer = found["clos, radix 8"]
    assert offer.parts.switches == {8: 1}
    assert offer.parts.cables == {(0, MIDDLE): 4, (1, MIDDLE): 4}
    assert offer.parts.cost(prices(8, 16)) == 8 * 10 + 800 + 8
    check(offer, workload())


@pytest.mark.parametrize(
    ("ranks", "radix", "ratio", "switches"), [(16, 8, 1, 6), (24, 8, 2, 8), (64, 8, 1, 40)]
)
def test_clos_of_two_and_three_levels(ranks: int, radix: int, ratio: int, switches: int) -> None:
    made = workload(ranks=ranks)
    found = named(made, prices(radix), ratio)
    offer = next(offer for name, offer in found.items() if name.startswith("clos"))
    assert offer.parts.num_switches == switches
    check(offer, made)
    spread = Use(collective=Collective.ALL_TO_ALL, size_bytes=ranks * 10**6)
    time = bound_us(offer.topology, spread, list(range(ranks)), relays=False)
    assert time >= (ranks - 1) * 100 * 0.999
    if ratio == 1:
        assert time == pytest.approx((ranks - 1) * 100)


def test_rails_and_rail_only() -> None:
    made = workload(ranks=16, ranks_per_host=4, host_gb_per_s=Fraction(100))
    found = named(made, prices(8))
    assert {"rail, radix 8", "rail-only, radix 8"} <= set(found)
    rail, apart = found["rail, radix 8"], found["rail-only, radix 8"]
    assert apart.parts.switches == {8: 4}
    assert rail.parts.switches == {8: 4 + 2}
    assert sum(rail.parts.cables.values()) == 16 + 16
    assert (rail.relays, apart.relays) == (False, True)
    check(rail, made)
    check(apart, made)


def test_dragonfly_is_balanced() -> None:
    made = workload(ranks=64)
    offer = named(made, prices(15))["dragonfly, radix 15"]
    check(offer, made)
    assert offer.parts.switches == {15: 16}


def test_direct_graphs_use_all_ports() -> None:
    made = workload(ranks=16, ports=2, ranks_per_host=2, host_gb_per_s=Fraction(100))
    for offer in named(made, prices(4)).values():
        if offer.graph is not None:
            topology = offer.topology
            outside = (topology.host[topology.src] != topology.host[topology.dst]) & (
                topology.host[topology.src] >= 0
            )
            for host in range(8):
                sent = topology.capacity[outside & (topology.host[topology.src] == host)].sum()
                assert sent / topology.denominator <= 4 * 10
            check(offer, made)


def test_more_ports_than_hosts_run_side_by_side() -> None:
    made = workload(ranks=4, ports=6)
    found = named(made, prices(4))
    assert found["complete(4), 2 links each"].parts.num_cables == 12


def test_times_are_those_of_the_network() -> None:
    made = workload(ranks=4, collectives=[Use(collective=Collective.ALL_GATHER, size_bytes=4 * 10**7)])
    offer = named(made, prices(8))["clos, radix 8"]
    found = timing(offer, made, made.collectives[0])
    assert found.time_us == pytest.approx(3000, rel=0.01)
    assert bound_us(offer.topology, made.collectives[0], [0, 1, 2, 3], relays=False) == pytest.approx(
        3000, rel=0.001
    )


def test_groups_share_the_network() -> None:
    made = workload(ranks=8, ports=2, collectives=[ALL])
    ring = next(offer for offer in named(made, prices(4)).values() if offer.graph is not None)
    apart = Use(collective=Collective.ALL_TO_ALL, size_bytes=2**24, group_size=2, stride=4)
    alone = bound_us(ring.topology, apart, apart.groups(8)[0], relays=True)
    assert timing(ring, made, apart).time_us > alone


def test_failures_slow_down() -> None:
    made = workload(ranks=8, ports=2, failures=Failures(links=1, samples=3))
    for offer in named(made, prices(16)).values():
        found = slowdown(offer, made)
        assert found is not None
        assert found.mean >= 1 - 1e-9
        assert found.worst >= found.mean - 1e-9
        if offer.graph is None:
            # One of the two cables of a rank is gone.
            assert found.worst == pytest.approx(2, rel=0.01)
    assert slowdown(offer, workload(ranks=8, ports=2)) is None


def test_cut_off_ranks_are_counted() -> None:
    made = workload(ranks=8, failures=Failures(links=1, samples=2))
    found = slowdown(named(made, prices(8))["clos, radix 8"], made)
    assert found is not None
    assert (found.cut_off, found.mean) == (1.0, float("inf"))


def test_failed_hosts_leave_their_groups() -> None:
    made = workload(ranks=8, ports=2, failures=Failures(hosts=1, samples=2))
    found = slowdown(named(made, prices(16))["clos, radix 16"], made)
    assert found is not None
    assert found.mean == pytest.approx(1, rel=0.2)


def test_the_market_is_sorted_and_its_csv_complete() -> None:
    uses = [ALL, Use(collective=Collective.ALL_REDUCE, size_bytes=2**12, count=3, group_size=4)]
    made = workload(ranks=8, ports=2, collectives=uses, failures=Failures(links=1, samples=1))
    market = compare_networks(made, prices(16))
    assert len(market.quotes) >= 3
    rates = [quote.cost_per_rate for quote in market.quotes]
    assert rates == sorted(rates)
    for quote in market.quotes:
        times = [each.time_us for each in quote.timings]
        assert quote.iteration_us == pytest.approx(times[0] + 3 * times[1])
        assert quote.cost_per_rate == pytest.approx(quote.cost * quote.iteration_us / 1e6)
        lower = [
            max(bound_us(quote.offer.topology, use, group, relays=True) for group in use.groups(8))
            for use in uses
        ]
        assert all(time >= least * 0.999 for time, least in zip(times, lower, strict=True))
    rows = list(csv.DictReader(io.StringIO(csv_text(market))))
    assert not {"timings", "collectives"} & rows[0].keys()  # which have columns of their own
    assert [row["network"] for row in rows] == [quote.offer.name for quote in market.quotes]
    assert market.record()["quotes"][0]["network"] == rows[0]["network"]


def test_the_picture_names_every_network_once(tmp_path: Path) -> None:
    """Points have numbers, those that lie together a common one, and the legend says which network is which."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    market = compare_networks(workload(ranks=8, ports=2), prices(16))
    target = tmp_path / "market.svg"
    draw(market, target)
    found = re.findall(r"<!-- (.*?) -->", target.read_text())
    for number, quote in enumerate(market.quotes, start=1):
        assert sum(text == f"{number}  {quote.offer.name}" for text in found) == 1
    labels = [text for text in found if re.fullmatch(r"[0-9, ]+", text) and (", " in text or len(text) < 3)]
    numbers = [int(part) for text in labels for part in text.split(", ")]
    assert set(range(1, len(market.quotes) + 1)) <= set(numbers)


def test_large_clusters_are_bounded() -> None:
    made = workload(ranks=130)
    found = named(made, prices(130))["clos, radix 130"]
    assert timing(found, made, ALL).how == "bound"


def test_cables_have_lengths() -> None:
    parts = Parts(nic_ports=0, racks=11, cables=Counter({(0, 0): 1, (0, 1): 1, (0, MIDDLE): 1}))
    listed = prices(8)
    assert parts.cost(listed) == 1 + 1 + 4
    parts.fibres[0, 10] += 2
    assert parts.cost(listed) == 1 + 1 + 4 + 4
    parts.cables[0, 1000] += 1
    with pytest.raises(InputError, match=r"cable of 602.0 m or more, found up to 100 m"):
        parts.cost(listed)


def test_examples_are_read(tmp_path: Path) -> None:
    made = read_workload(EXAMPLES / "network-workload.toml")
    assert (made.ranks, made.hosts, made.host_ports) == (64, 16, 4)
    assert len(read_prices(EXAMPLES / "network-prices.toml").switches) == 3
    file = tmp_path / "workload.json"
    file.write_text(
        '{"ranks": 4, "collectives": [{"collective": "all_reduce", "size_bytes": 8}], "gb_per_s": "25/2"}'
    )
    assert read_workload(file).gb_per_s == Fraction(25, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ranks = 1\ncollectives = [{collective = 'all_reduce', size_bytes = 8}]", r"\$.ranks of 2"),
        ("ranks = 8\ncollectives = []", "one or more"),
        (
            "ranks = 8\ncollectives = [{collective = 'broadcast', size_bytes = 8}]",
            r"collectives\[0\].collective",
        ),
        ("ranks = 8\ncollectives = [{collective = 'all_reduce', size_bytes = 0}]", "1 byte or more"),
        (
            "ranks = 8\ncollectives = [{collective = 'all_reduce', size_bytes = 8, group_size = 3}]",
            "divide the 8 ranks",
        ),
        (
            "ranks = 8\nranks_per_host = 3\ncollectives = [{collective = 'all_reduce', size_bytes = 8}]",
            "whole hosts",
        ),
        (
            "ranks = 8\nranks_per_host = 8\ncollectives = [{collective = 'all_reduce', size_bytes = 8}]",
            "two hosts",
        ),
        (
            "ranks = 8\nfailures = {hosts = 7}\ncollectives = [{collective = 'all_reduce', size_bytes = 8}]",
            "survive",
        ),
        ("ranks = 8\nnodes = 3", "unknown field `nodes`"),
        ("ranks = ", "to be TOML"),
    ],
)
def test_workloads_without_meaning(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "workload.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_workload(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "nic_port"),
        ('{"nic_port": 1, "switches": [], "cables": []}', r"\$.switches with one"),
        (
            '{"nic_port": 1, "switches": [{"radix": 1, "price": 1}], "cables": [{"max_m": 1, "price": 1}]}',
            "radix of 2",
        ),
        (
            '{"nic_port": -1, "switches": [{"radix": 4, "price": 1}], "cables": [{"max_m": 1, "price": 1}]}',
            "nic_port of 0",
        ),
        ("[", "to be JSON"),
    ],
)
def test_price_lists_without_meaning(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_prices(file)
    with pytest.raises(InputError, match="cannot read"):
        read_prices(tmp_path / "missing.toml")


def test_oversubscription_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="1 or more, found 1/2"):
        compare_networks(workload(), prices(8), oversubscriptions=[Fraction(1, 2)])
