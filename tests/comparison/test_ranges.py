"""Who wins where, and why in words."""

from __future__ import annotations

from collections.abc import Mapping

from comparison.cases import measured
from coppice.comparison.measurement import SimulatedTime
from coppice.comparison.ranges import Range, percent, ranges, variants
from coppice.text import short_size

K, M = 2**10, 2**20


def found(times: Mapping[str, Mapping[int, SimulatedTime]], limit: float = 1.0) -> list[Range]:
    sizes = sorted({size for by_size in times.values() for size in by_size})
    return list(ranges(sizes, times, limit_us=lambda _: limit))


def line(name: str, times: Mapping[int, float], **fields: object) -> dict[int, SimulatedTime]:
    return {size: measured(name, size, time, **fields) for size, time in times.items()}


def test_short_chain_wins_small_sizes_and_light_links_large_ones() -> None:
    doubling = line("doubling", {K: 5.0, 64 * K: 8.0, M: 90.0, 64 * M: 5000.0}, chain=5, link_us=40.0)
    ring = line("ring", {K: 62.0, 64 * K: 63.0, M: 80.0, 64 * M: 2500.0}, chain=62, link_us=20.0)
    first, second = found({"ring": ring, "doubling": doubling})
    assert (first.algorithm, first.sizes_text, first.rival) == ("doubling", "1K..64K", "ring")
    assert first.why == "5 messages in a row, ring 62"
    assert first.text == "1K..64K doubling (5 messages in a row, ring 62; 12% of the limit at 64K)"
    assert (second.algorithm, second.sizes_text, second.rival) == ("ring", "1M..64M", "doubling")
    assert second.why == "its busiest link is busy 20 us, that of doubling 40 us"


def test_equal_times_do_not_break_a_range() -> None:
    """Differences within one percent: the algorithm that stays the best for longest has the whole range."""
    a = line("a", {K: 10.0, 2 * K: 20.0, 4 * K: 30.0, 8 * K: 40.0})
    b = line("b", {K: 9.95, 2 * K: 20.1, 4 * K: 29.9, 8 * K: 80.0})
    (only,) = found({"b": b, "a": a})
    assert (only.algorithm, only.rival, only.why) == ("a", "b", "as good as b")


def test_fewest_ranges() -> None:
    a = line("a", {K: 1.0, 2 * K: 1.0, 4 * K: 9.0, 8 * K: 9.0})
    b = line("b", {K: 9.0, 2 * K: 1.0, 4 * K: 1.0, 8 * K: 1.0})
    c = line("c", {K: 9.0, 2 * K: 9.0, 4 * K: 1.0, 8 * K: 9.0})
    assert [(each.algorithm, each.sizes_text) for each in found({"a": a, "b": b, "c": c})] == [
        ("a", "1K..2K"),
        ("b", "4K..8K"),
    ]


def test_busy_links_explain_what_chains_and_loads_do_not() -> None:
    a = line("a", {M: 100.0}, chain=9, link_us=90.0)
    b = line("b", {M: 200.0}, chain=2, link_us=90.0)
    (only,) = found({"a": a, "b": b})
    assert only.why == "its busiest link works 90% of the time, that of b 45%"


def test_one_algorithm_has_no_rival() -> None:
    (only,) = found({"ring": line("ring", {K: 4.0, M: 8.0})}, limit=8.0)
    assert (only.rival, only.why) == (None, "")
    assert only.text == "1K..1M ring (100% of the limit at 1M)"


def test_rival_is_the_winner_of_the_next_range_and_not_the_second_best() -> None:
    a = line("a", {K: 1.0, M: 90.0}, chain=1)
    b = line("b", {K: 9.0, M: 10.0}, chain=9)
    c = line("c", {K: 2.0, M: 80.0}, chain=2)
    assert [(each.algorithm, each.rival) for each in found({"a": a, "b": b, "c": c})] == [
        ("a", "b"),
        ("b", "a"),
    ]


def test_sizes_at_which_nothing_applies_are_left_out() -> None:
    times = {"ring": line("ring", {K: 4.0})}
    (only,) = ranges([512, K, M], times, limit_us=lambda _: 1.0)
    assert only.sizes_text == "1K"


def test_variants_in_words() -> None:
    rows = [
        measured("tree", K, 1.0, parameters={"segments": 1, "radix": 4}),
        measured("tree", M, 1.0, parameters={"segments": 16, "radix": 4}, order="topology", relays=True),
    ]
    text = "segments 1..16, radix 4, ranks in the order of the topology, GPUs that relay"
    assert variants(rows) == text
    assert variants(rows[:1]) == "radix 4"
    assert variants([measured("forest", K, 1.0), measured("forest", M, 1.0, pieces=8)]) == "1..8 pieces"
    assert variants([measured("a", K, 1.0, parameters={"fold": "x"})]) == "fold x"


def test_texts_of_sizes_and_shares() -> None:
    assert [short_size(size) for size in (1, 1023, K, 3 * K, M + K, 2**30, 2**41)] == [
        *("1", "1023", "1K", "3K", "1025K", "1G", "2T"),
    ]
    assert [percent(share) for share in (1.0, 0.99999, 0.985, 0.5, 0.004)] == [
        *("100%", "99.9%", "98%", "50%", "0.4%"),
    ]
