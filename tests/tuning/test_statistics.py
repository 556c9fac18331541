"""Verdicts on pairs: exact on small cases, honest under noise, seeded."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology.presets import preset
from coppice.tuning.fit import NO_END, fit_runs
from coppice.tuning.records import LibraryChoice, TimedRun, decode_runs, encode_run, joined, read_runs
from coppice.tuning.report import bounds_us
from coppice.tuning.statistics import compare, holm
from coppice.tuning.table import RuleTable, decode_table, encode_table, read_table
from support.tuning_made_runs import made_runs


def test_exact_probability_of_signed_ranks() -> None:
    """Counted by hand: all 2^n sign changes of the ranks."""
    default, times = [10.0, 20.0, 30.0, 40.0, 50.0], [9.0, 17.0, 24.0, 44.0, 30.0]
    logs = np.log(default) - np.log(times)
    ranks = np.argsort(np.argsort(np.abs(logs))) + 1
    observed = int((np.sign(logs) * ranks).sum())
    sums = [
        sum(sign * rank for sign, rank in zip(signs, ranks, strict=True))
        for signs in product((1, -1), repeat=5)
    ]
    found = compare(default, times, paired=True)
    assert found.p_faster == sum(each >= observed for each in sums) / 32
    assert found.p_slower == sum(each <= observed for each in sums) / 32


def test_no_difference_is_rarely_taken_for_one() -> None:
    """Of 100 comparisons each of equal things with heavy tails, about 5 percent may pass at 5 percent."""
    random = np.random.default_rng(5)
    for paired in (True, False):
        passed = 0
        for _ in range(100):
            default, times = np.exp(random.standard_t(2, (2, 9)) / 10) * 50
            passed += compare(default.tolist(), times.tolist(), paired=paired).p_faster <= 0.05
        assert passed <= 12


def test_pairs_find_what_drift_hides() -> None:
    """A gain of 5 percent under a drift of 40 percent: sure in pairs, lost without them."""
    random = np.random.default_rng(2)
    drift = np.exp(random.normal(0, 0.4, 11))
    default, times = 100 * drift, 100 * drift / 1.05 * np.exp(random.normal(0, 0.005, 11))
    inside = compare(default.tolist(), times.tolist(), paired=True)
    assert inside.p_faster < 0.001
    assert inside.low > 1.03
    assert compare(default.tolist(), times.tolist(), paired=False).p_faster > 0.2


def test_outliers_count_but_do_not_decide() -> None:
    default, times = (
        [10.0, 10.1, 9.9, 10.0, 10.2, 10.1, 9.8, 10.0, 10.0, 10.3, 9.9],
        [5.0, 5.1, 5.0, 4.9, 5.05, 5.0, 5.1, 900.0, 5.0, 5.1, 5.0],
    )
    found = compare(default, times, paired=True)
    assert (found.outliers, found.repeats) == (1, 11)
    assert 1.9 < found.gain < 2.1
    assert found.p_faster < 0.05


def test_same_input_same_verdict() -> None:
    random = np.random.default_rng(1)
    default, times = np.exp(random.normal(0, 1, (2, 30)))
    first, again = (compare(default.tolist(), times.tolist(), paired=True, seed=4) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("paired", [True, False])
def test_one_measurement_proves_nothing(paired: bool) -> None:
    assert compare([100.0], [1.0], paired=paired).p_faster > 0.4


def test_holm() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


SIZES = [1 << power for power in (10, 12, 14, 16, 18, 20)]


def choices(runs: list[TimedRun], **options: object) -> list[str]:
    (found,) = fit_runs(runs, **options).sizes.values()  # type: ignore[arg-type]
    return [str(size.taken.choice) if size.taken else "-" for size in found]


def test_the_fastest_where_it_is_sure() -> None:
    small, large = SIZES[:3], SIZES[3:]
    runs = made_runs(
        {
            "ring": {**dict.fromkeys(small, 0.5), **dict.fromkeys(large, 1.5)},
            "tree": {**dict.fromkeys(small, 1.01), **dict.fromkeys(large, 1.2)},
        }
    )
    found = fit_runs(runs)
    assert choices(runs) == ["-", "-", "-", "ring", "ring", "ring"]
    default, ring = found.rules
    assert (default.choice, ring.choice) == (None, LibraryChoice("ring"))
    assert default.last_bytes + 1 == ring.first_bytes == 32769  # geometric mean of 16K and 64K, and one
    assert (default.first_bytes, ring.last_bytes) == (512, 2 << 20)  # half a step beyond what was measured
    assert ring.sizes == tuple(large)
    assert 1.4 < ring.low < ring.gain < ring.high < 1.6


def test_rules_within_noise_do_not_exist() -> None:
    """Fits of things that are equal: hardly a rule."""
    rules = 0
    for seed in range(12):
        runs = made_runs({name: dict.fromkeys(SIZES, 1.0) for name in "abcdef"}, noise=0.1, seed=seed)
        rules += sum(choice != "-" for choice in choices(runs))
    assert rules <= 2


def test_neighbours_share_where_that_costs_little() -> None:
    a = dict.fromkeys(SIZES, 1.50)
    b = {size: 1.515 if size == SIZES[2] else 1.0 for size in SIZES}
    assert set(choices(made_runs({"a": a, "b": b}, noise=0.001))) == {"a"}
    b[SIZES[2]] = 1.8
    assert choices(made_runs({"a": a, "b": b}, noise=0.001)).count("b") == 1


def test_few_repeats_prove_nothing() -> None:
    runs = made_runs({"ring": dict.fromkeys(SIZES, 3.0)}, repeats=6)
    assert set(choices(runs)) == {"-"}
    assert set(choices(made_runs({"ring": dict.fromkeys(SIZES, 3.0)}, repeats=7))) == {"ring"}


def test_wrong_results_are_never_taken() -> None:
    runs = made_runs({"ring": dict.fromkeys(SIZES, 3.0)})
    bad = [TimedRun(**{**{f: getattr(run, f) for f in run.__struct_fields__}, "wrong": 1}) for run in runs]
    found = fit_runs([*bad, *made_runs({"tree": dict.fromkeys(SIZES, 1.0)})])
    assert all(rule.choice is None for rule in found.rules)
    (sizes,) = found.sizes.values()
    assert sizes[0].refused == ((LibraryChoice("ring"), "1 wrong results"),)


def test_extended_rules_have_no_end() -> None:
    found = fit_runs(made_runs({"ring": dict.fromkeys(SIZES, 2.0)}), extend=True)
    assert [(rule.first_bytes, rule.last_bytes) for rule in found.rules] == [(0, NO_END)]


def test_distance_from_the_bound() -> None:
    runs = made_runs({"ring": dict.fromkeys(SIZES, 2.0)}, noise=0.001)
    limits = bounds_us(runs, preset("star", gpus=4, gb_per_s=100))
    # An all-reduce of 4 ranks on one switch moves M at 2/3 of a port's rate: 1 MiB at 66.7 GB/s in 15.7 us.
    shape = runs[0].shape
    assert limits[shape, 1 << 20] == pytest.approx((1 << 20) * 1.5 / 100e3)
    found = fit_runs(runs, bounds_us=limits)
    (sizes,) = found.sizes.values()
    assert sizes[-1].reached(sizes[-1].time_us) == pytest.approx(15.73 / (1058.6 / 2), rel=0.2)
    with pytest.raises(InputError, match="found 8 ranks"):
        bounds_us(runs, preset("star", gpus=8, gb_per_s=100))


def test_tables_are_read_back(tmp_path: Path) -> None:
    gains = {**dict.fromkeys(SIZES[:3], 1.0), **dict.fromkeys(SIZES[3:], 2.0)}
    runs = [
        *made_runs({"ring": gains, "basic_linear": dict.fromkeys(SIZES, 0.9)}),
        *made_runs({"binomial": dict.fromkeys(SIZES, 1.3)}, collective=Collective.BROADCAST),
    ]
    table = RuleTable.of(fit_runs(runs), topology="two boxes 0123456789abcdef")
    text = encode_table(table)
    again = decode_table(text)
    assert encode_table(again).splitlines()[4:] == text.splitlines()[4:]
    assert (again.library, again.version, again.topology) == ("open-mpi", "5.0", "two boxes 0123456789abcdef")
    assert [rule.choice for rule in again.rules] == [rule.choice for rule in table.rules]
    (tmp_path / "t.csv").write_text(text)
    assert read_table(tmp_path / "t.csv") == again


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("all_reduce,2,4,512", "all_red,2,4,512", ":6"),
        ("all_reduce,2,4,512", "all_reduce,5,4,512", ":6"),
        ("all_reduce,2,4,512", "all_reduce,2,4,-512", ":6"),
        (",ring,", ",r!ng,", ":6"),
        (",ring,", ",ring,,", "15"),
        ("# library open-mpi", "# library something", "no tuning table"),
        ("collective,nodes", "collectives,nodes", "columns"),
    ],
)
def test_tables_with_faults_are_refused(old: str, new: str, message: str) -> None:
    text = encode_table(
        RuleTable.of(fit_runs(made_runs({"ring": dict.fromkeys(SIZES, 2.0)})), topology="x y")
    )
    assert old in text
    with pytest.raises(InputError, match=message):
        decode_table(text.replace(old, new))


def test_overlapping_ranges_are_refused() -> None:
    text = encode_table(RuleTable.of(fit_runs(made_runs({"ring": dict.fromkeys(SIZES, 2.0)}))))
    with pytest.raises(InputError, match="do not overlap"):
        decode_table(text + text.splitlines()[-1] + "\n")


def test_runs_are_read_back_and_joined(tmp_path: Path) -> None:
    runs = made_runs({"ring": dict.fromkeys(SIZES, 2.0)}, repeats=3)
    data = b"".join(map(encode_run, runs))
    assert decode_runs(data, file="r")[0] == tuple(runs)
    assert decode_runs(data + b'{"library', file="r") == (tuple(runs), len(data))
    both = joined([*runs, *runs])
    assert [len(run.time_us) for run in both] == [6] * len(SIZES)
    (tmp_path / "a").write_bytes(data)
    assert read_runs([tmp_path / "a", tmp_path / "a"]) == both
    other = made_runs({"ring": {1024: 1.0}}, library="mpich")
    (tmp_path / "b").write_bytes(encode_run(other[0]))
    with pytest.raises(InputError, match="one library"):
        read_runs([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"mpich"', b"7"),
        (b'"nodes":2', b'"nodes":9'),
        (b'"time_us":[', b'"time_us":[-1,'),
        (b'"collective":"all_reduce"', b'"collective":"all_red"'),
        (b'"time_us":[', b'"time_us":[1.5,'),
    ],
)
def test_runs_with_faults_are_refused_with_their_line(old: bytes, new: bytes) -> None:
    good = encode_run(made_runs({"ring": {1024: 1.0}}, library="mpich")[0])
    assert old in good
    with pytest.raises(InputError, match="r:2"):
        decode_runs(good + good.replace(old, new), file="r")
