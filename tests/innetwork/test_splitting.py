"""Part in the network, part by hosts: the best share against a grid, an LP, and what each reaches alone."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.innetwork.systems import AggregationCase, estimate
from coppice.innetwork.systems.hosts import ring_share
from coppice.innetwork.systems.splitting import best_split, split

times = st.dictionaries(st.sampled_from("abcdef"), st.fractions(0, 4, max_denominator=12), min_size=1).filter(
    lambda each: any(each.values())
)


@given(network=times, hosts=times)
def test_the_best_share_is_that_of_a_grid(network: dict[str, Fraction], hosts: dict[str, Fraction]) -> None:
    found = best_split(network, hosts)

    def time(share: Fraction) -> Fraction:
        names = network.keys() | hosts.keys()
        return max(
            share * network.get(name, 0) + (1 - share) * hosts.get(name, Fraction(0)) for name in names
        )

    assert time(found.share) == found.inv_rate
    assert found.inv_rate <= min(time(Fraction(0)), time(Fraction(1)))
    assert found.gain >= 1
    grid = [Fraction(i, 240) for i in range(241)]
    assert found.inv_rate <= min(map(time, grid))
    steepest = max(abs(network.get(name, Fraction(0)) - hosts.get(name, Fraction(0))) for name in "abcdef")
    assert found.inv_rate >= min(map(time, grid)) - steepest / 480
    for name in found.limits:
        assert found.share * network.get(name, 0) + (1 - found.share) * hosts.get(name, 0) == found.inv_rate


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_links_that_limit_both_leave_nothing_to_gain(workers: int) -> None:
    """An aggregating switch takes each link once, a ring 2 (n - 1) / n times: never less."""
    found = split("sharp", AggregationCase(workers=workers, gb_per_s=Fraction(25)))
    assert (found.share, found.gain) == (1, 1)
    assert "a split brings nothing" in found.words
    assert found.hosts / found.network == ring_share(workers)


def test_a_switch_that_limits_gains_from_hosts_by_a_known_share() -> None:
    rate = Fraction(5)
    case = AggregationCase(workers=8, gb_per_s=Fraction(10), adding_gb_per_s=8 * rate)
    found = split("netagg", case)
    share = Fraction(7, 4) / (10 / rate + Fraction(3, 4))
    assert found.share == share
    assert found.inv_rate == share / rate
    assert set(found.limits) == {"workers' links", "the switch with its window"}
    server = split("netagg", case, beside="ps")
    assert server.share / rate == (1 - server.share) * 8 / 10
    assert server.gain > 1


@pytest.mark.parametrize("slots", [1, 8, 32, 64, 256])
@pytest.mark.parametrize("beside", ["ring", "ps"])
def test_a_split_is_never_worse_than_either_alone(slots: int, beside: str) -> None:
    case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2), slots=slots)
    for system in (
        "switchml",
        "fpisa",
        "atp",
        "netreduce",
        "sharp",
        "sharp-v1",
        "streaming",
        "netagg",
        "nvls",
    ):
        found = split(system, case, beside=beside)
        assert found.gain >= 1
        assert 1 / found.network == pytest.approx(estimate(system, case, 2**40).gb_per_s, rel=1e-6)


def test_what_means_nothing_is_refused() -> None:
    case = AggregationCase(workers=8, gb_per_s=Fraction(10))
    with pytest.raises(
        InputError, match=r"expected `beside` as ring or ps, found 'rang'.*did you mean 'ring'"
    ):
        split("sharp", case, beside="rang")
    with pytest.raises(InputError, match="boxes of one GPU for a split, found 2"):
        split("netreduce", AggregationCase(workers=8, gpus=2, box_gb_per_s=Fraction(9), gb_per_s=Fraction(1)))
    with pytest.raises(InputError, match="takes no time"):
        best_split({"a": Fraction(0)}, {"a": Fraction(1)})
