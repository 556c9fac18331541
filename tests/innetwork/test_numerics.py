"""Sums as switches make them against their definitions, bit for bit, and against the bounds they promise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coppice import _switch
from coppice.errors import InputError
from coppice.innetwork.numerics import (
    block_dequantise,
    block_exponent,
    block_quantise,
    block_scale,
    block_sum,
    fixed_point_sum,
    float_sum,
    fpisa_sum,
    saturating_sum,
    wrapping_sum,
)
from reference.innetwork import numerics as reference

FLT_MAX = float(np.finfo(np.float32).max)
LEAST = float(np.float32(1e-45))
HALF = Fraction(1, 2)


def float32(bits: Any) -> NDArray[np.float32]:
    return np.array(bits, dtype=np.uint32).view(np.float32)


def exact(values: NDArray[Any], kind: str = "float32") -> list[Fraction]:
    """Exact sums of columns."""
    form = reference.FORMATS[kind]
    bits = values.view(np.uint32 if kind == "float32" else np.uint16)
    return [sum((form.value(int(each)) for each in column), Fraction(0)) for column in bits.T]


# Any bits, and more often those near the ends, of small numbers, and of like magnitudes.
ANY = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1 << 31, 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x00800000, 0x3F800000, 0x7F000000]),
    st.integers(0x3F000000, 0x41000000),
    st.integers(0xBF000000, 0xC1000000),
)
FINITE = ANY.filter(lambda bits: bits >> 23 & 255 != 255)
WORKERS = st.one_of(st.integers(1, 9), st.sampled_from([32, 33, 255, 256, 257, 1000, 65536, 2**31 - 1]))


@given(st.lists(ANY, max_size=40), WORKERS)
def test_block_floating_point_is_its_definition(bits: list[int], workers: int) -> None:
    values = float32(bits)
    exponent = reference.block_exponent(list(values))
    if exponent is None:
        with pytest.raises(InputError, match=r"expected finite values, found .* at position"):
            block_exponent(values)
        return
    assert block_exponent(values) == exponent
    assert block_scale(exponent, workers=workers) == reference.block_scale(exponent, workers)
    q = block_quantise(values, exponent=exponent, workers=workers)
    assert q.tolist() == [reference.block_quantised(each, exponent, workers) for each in values.tolist()]
    assert all(abs(each) * workers <= reference.INT_MAX for each in q.tolist())
    back = block_dequantise(q, exponent=exponent, workers=workers)
    step = 1 / float(reference.block_scale(exponent, workers))  # a float64, as is the product
    with np.errstate(over="ignore"):
        assert back.tolist() == [float(np.float32(each * step)) for each in q.tolist()]


@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=9))
def test_block_sums_keep_their_bound(rows: list[list[int]]) -> None:
    values = float32(rows)
    found = block_sum(values, block=2)
    for sum_bits, wanted, bound in zip(
        found.sums.view(np.uint32).tolist(), exact(values), found.bound.tolist(), strict=True
    ):
        if reference.FLOAT32.is_finite(sum_bits):
            rounding = (
                reference.FLOAT32.last_place(reference.FLOAT32.value(sum_bits))
                * HALF
                * (1 + Fraction(1, 2**20))
            )
            assert abs(reference.FLOAT32.value(sum_bits) - wanted) <= Fraction(bound) + rounding
        else:
            assert abs(wanted) + Fraction(bound) > Fraction(FLT_MAX)


def test_the_bound_of_a_block_is_tight() -> None:
    """Every worker half a step off, all to one side: nothing smaller would do."""
    scale = reference.block_scale(1, 8)
    value = np.float32(2**-28 * 0.5)  # between two steps of 2^-27
    values = np.full((8, 2), value, dtype=np.float32)
    values[:, 1] = 1.0
    found = block_sum(values)
    error = abs(Fraction(float(found.sums[0])) - 8 * Fraction(float(value)))
    assert error > Fraction(8, 1) / (2 * scale) * Fraction(4, 10)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8, 255, 256, 257, 1000, 5000])
@pytest.mark.parametrize("value", [FLT_MAX, -FLT_MAX, 1.0, -1.9999999, 2.0**126, 2.0**127, 2.0**-126, LEAST])
def test_sums_of_equal_values_do_not_wrap(workers: int, value: float) -> None:
    """All at the largest magnitude of their block, rounding included."""
    values = np.full((workers, 1), value, dtype=np.float32)
    found = block_sum(values)
    with np.errstate(over="ignore"):
        wanted = np.float32(workers * float(values[0, 0]))
    assert np.sign(found.sums[0]) == np.sign(value) or abs(workers * value) < 2.0**-126
    if np.isfinite(wanted):
        assert abs(float(found.sums[0]) - float(wanted)) <= found.bound[0] + 2e-7 * abs(float(wanted))
    else:
        assert found.sums[0] == wanted or abs(found.sums[0]) == np.float32(FLT_MAX)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 255, 256, 257])
def test_blocks_end_where_the_values_end(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(5, count)).astype(np.float32)
    values[:, : count // 2] = 0
    found = block_sum(values, block=64)
    assert found.sums.shape == found.bound.shape == (count,)
    assert len(found.exponents) == -(-count // 64)
    assert (found.sums[: count // 2].view(np.uint32) == 0).all()
    assert np.abs(found.sums - values.astype(np.float64).sum(axis=0)).max(initial=0) < 1e-6


def test_values_beyond_a_wrong_exponent_stick() -> None:
    q = block_quantise(float32([0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000]), exponent=-5, workers=4)
    assert q.tolist() == [2**29 - 1, -(2**29 - 1), 2**29 - 1]


INTEGERS = st.one_of(
    st.integers(-(2**31), 2**31 - 1), st.sampled_from([2**31 - 1, -(2**31), 2**31 - 2, 1, -1, 0])
)


@given(st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=6))
def test_saturating_sums_are_their_definition(rows: list[tuple[int, int]]) -> None:
    values = np.array(rows, dtype=np.int32)
    found = saturating_sum(values).tolist()
    total = [0, 0]
    for row in rows:
        total = [reference.saturated(a, b) for a, b in zip(total, row, strict=True)]
    assert found == total
    for sum_, wanted in zip(found, np.sum(np.array(rows, dtype=object), axis=0), strict=True):
        assert sum_ in (reference.INT_MAX, reference.INT_MIN) or sum_ == wanted
    wrapped = np.sum(np.array(rows, dtype=object), axis=0)
    assert wrapping_sum(values).tolist() == [(each + 2**31) % 2**32 - 2**31 for each in wrapped]


@given(st.lists(ANY, min_size=1, max_size=40), st.sampled_from([1, 1000, 10**6, 2**29]))
def test_fixed_point_is_its_definition(bits: list[int], factor: int) -> None:
    values = float32(bits)
    fixed = [reference.fixed(each, factor) for each in values]
    assert _switch.to_fixed(values, factor).tolist() == fixed
    found = fixed_point_sum(values[None, :], factor=factor)
    assert found.overflowed.tolist() == [each in (reference.INT_MAX, reference.INT_MIN) for each in fixed]
    for sum_, each, over in zip(found.sums.tolist(), fixed, found.overflowed, strict=True):
        assert sum_ == (float("inf") * each if over else float(np.float32(each / factor)))


@given(st.lists(st.lists(st.integers(-(2**24), 2**24), min_size=2, max_size=2), min_size=1, max_size=8))
def test_fixed_point_sums_keep_their_bound_or_overflow(rows: list[list[int]]) -> None:
    values = (np.array(rows) / 2**14).astype(np.float32)  # up to 1,024 each: some sums leave the range
    found = fixed_point_sum(values)
    for sum_, wanted, over in zip(found.sums.tolist(), exact(values), found.overflowed, strict=True):
        if over:
            assert abs(sum_) == float("inf")
        else:
            assert abs(Fraction(sum_) - wanted) <= Fraction(found.bound) + abs(wanted) * Fraction(1, 2**23)
        assert over or abs(wanted) < 2148


def of_kind(rows: list[list[int]], kind: str) -> NDArray[Any]:
    if kind == "float32":
        return float32(rows)
    bits = (np.array(rows, dtype=np.uint64) >> 16).astype(np.uint16)
    return bits.view(np.float16) if kind == "float16" else bits


@settings(max_examples=300)
@given(
    st.lists(st.lists(ANY, min_size=2, max_size=2), min_size=1, max_size=12),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 23),
    st.integers(0, 23),
)
def test_fpisa_is_its_definition(
    rows: list[list[int]], kind: str, full: bool, nearest: bool, guard: int, headroom: int
) -> None:
    form = reference.FORMATS[kind]
    room = 30 - form.fraction
    guard = min(guard, room)
    headroom = min(headroom, room - guard)
    values = of_kind(rows, kind)
    found = fpisa_sum(
        values,
        mode="full" if full else "approximate",
        guard=guard,
        headroom=headroom,
        rounding="nearest" if nearest else "truncate",
    )
    bits = values.view(np.uint32 if kind == "float32" else np.uint16)
    registers = [reference.Register() for _ in bits.T]
    for register, column in zip(registers, bits.T, strict=True):
        for each in column.tolist():
            register.add(each, form, full=full, guard=guard, headroom=headroom)
    read = found.sums.view(bits.dtype).tolist()
    assert read == [each.read(form, guard, nearest=nearest) for each in registers]
    assert found.overflowed == sum(each.overflowed for each in registers)
    assert found.overwritten == sum(each.overwritten for each in registers)
    assert found.not_finite == sum(each.not_finite for each in registers)
    if full:
        check_bound(found.sums, values, kind, found.bound)


def check_bound(sums: NDArray[Any], values: NDArray[Any], kind: str, bound: Any) -> None:
    form = reference.FORMATS[kind]
    bits = values.view(np.uint32 if kind == "float32" else np.uint16)
    for at, sum_bits in enumerate(sums.view(bits.dtype).tolist()):
        if form.is_finite(sum_bits) and sum_bits & (form.sign - 1) != form.infinity - 1:
            wanted = sum((form.value(int(each)) for each in bits[:, at]), Fraction(0))
            assert abs(form.value(sum_bits) - wanted) <= Fraction(float(bound[at]))


def test_full_fpisa_rounds_down_by_less_than_a_unit_for_each_value() -> None:
    random = np.random.default_rng(4)
    values = (random.normal(size=(8, 500)) * 1e-2).astype(np.float32)
    found = fpisa_sum(values)
    assert found.overflowed == found.overwritten == 0
    assert found.bound is not None
    error = found.sums - values.astype(np.float64).sum(axis=0)
    assert (np.abs(error) <= found.bound).all()
    assert error.mean() < 0  # shifts round towards minus infinity
    finer = fpisa_sum(values, guard=4).sums - values.astype(np.float64).sum(axis=0)
    assert np.abs(finer).mean() < np.abs(error).mean() / 2


def test_fpisa_sums_depend_on_the_order_of_arrival() -> None:
    small = np.float32(2**-24)
    ascending = np.array([[small], [small], [1]], dtype=np.float32)
    assert fpisa_sum(ascending).sums[0] == np.float32(1 + 2**-23)
    assert fpisa_sum(ascending[::-1].copy()).sums[0] == 1


def test_approximate_fpisa_counts_what_it_overwrites() -> None:
    values = np.array([[1, 1, 1, 0], [128, 256, 1e9, 1e9]], dtype=np.float32)
    found = fpisa_sum(values, mode="approximate")
    assert found.sums.tolist() == [129, 256, 1e9, 1e9]
    assert (found.overwritten, found.bound) == (2, None)
    narrower = fpisa_sum(values, mode="approximate", headroom=6)
    assert narrower.sums.tolist() == [128, 256, 1e9, 1e9]
    assert narrower.overwritten == 3
    assert fpisa_sum(values[::-1].copy(), mode="approximate").overwritten == 0


def test_fpisa_marks_what_leaves_its_register() -> None:
    ones = np.ones((256, 1), dtype=np.float32)
    assert fpisa_sum(ones[:255]).sums[0] == 255
    over = fpisa_sum(ones)
    assert np.isnan(over.sums[0])
    assert over.overflowed == 1
    halves = np.ones((1000, 1), dtype=np.float16)
    assert fpisa_sum(halves).sums[0] == 1000
    assert fpisa_sum(halves, guard=13).overflowed == 1


@given(
    st.lists(st.lists(ANY, min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from(["float16", "bfloat16"]),
)
def test_half_sums_are_rounded_once(rows: list[list[int]], kind: str) -> None:
    values = of_kind(rows, kind)
    form = reference.FORMATS[kind]
    found = float_sum(values).view(np.uint16).tolist()
    wide = values.astype(np.float32)
    if kind == "bfloat16":
        wide = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    total = wide[0].copy()
    with np.errstate(all="ignore"):
        for row in wide[1:]:
            total += row
    for bits, wanted in zip(found, total.tolist(), strict=True):
        if wanted != wanted:
            assert bits & (form.sign - 1) > form.infinity
        elif abs(wanted) == float("inf"):
            assert bits == form.infinity | (form.sign if wanted < 0 else 0)
        elif wanted == 0:
            assert bits & (form.sign - 1) == 0
        else:
            assert bits == form.rounded(Fraction(wanted))


def test_float32_sums_are_added_in_the_order_of_the_rows() -> None:
    values = np.random.default_rng(5).normal(size=(9, 301)).astype(np.float32)
    total = values[0].copy()
    for row in values[1:]:
        total += row
    assert (float_sum(values) == total).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_sum(np.ones(3, dtype=np.float32)), r"shape \(workers, count\), found shape \(3,\)"),
        (lambda: block_sum(np.ones((0, 3), dtype=np.float32)), r"found shape \(0, 3\)"),
        (lambda: block_sum(np.ones((2, 3))), r"type float32, found float64: convert it with"),
        (lambda: block_sum(np.ones((2, 3), dtype=np.float32), block=0), r"`block` from 1 to"),
        (lambda: block_scale(128, workers=2), r"`exponent` from -126 to 127, found 128"),
        (lambda: block_scale(3, workers=0), r"`workers` from 1 to"),
        (lambda: block_exponent(np.array([1, np.nan], dtype=np.float32)), r"found nan at position 1"),
        (lambda: saturating_sum([[1]]), r"`values` of saturating_sum to be"),
        (lambda: fixed_point_sum(np.ones((1, 1), dtype=np.float32), factor=0), r"`factor` above 0, found 0"),
        (lambda: fpisa_sum(np.ones((1, 1), dtype=np.float32), guard=8), r"`guard` from 0 to 7, found 8"),
        (
            lambda: fpisa_sum(np.ones((1, 1), dtype=np.float32), guard=3, headroom=5),
            r"`headroom` from 0 to 4",
        ),
        (
            lambda: float_sum(np.ones((1, 1), dtype=np.int32)),
            r"type float32 or float16 or uint16, found int32",
        ),
    ],
)
def test_what_is_no_table_of_values_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
