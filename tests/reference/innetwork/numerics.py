"""Sums of switches by their definitions, one value at a time, in whole numbers and fractions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)


@dataclass(frozen=True)
class Format:
    """A floating-point format: bits of its fraction and of its exponent."""

    fraction: int
    exponent: int

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def special(self) -> int:
        return 2**self.exponent - 1

    @property
    def infinity(self) -> int:
        return self.special << self.fraction

    @property
    def sign(self) -> int:
        return 1 << (self.fraction + self.exponent)

    def fields(self, bits: int) -> tuple[bool, int, int]:
        return bool(bits & self.sign), bits >> self.fraction & self.special, bits & ((1 << self.fraction) - 1)

    def is_finite(self, bits: int) -> bool:
        return self.fields(bits)[1] != self.special

    def value(self, bits: int) -> Fraction:
        negative, field, fraction = self.fields(bits)
        whole = fraction | (1 << self.fraction if field else 0)
        magnitude = whole * Fraction(2) ** (max(field, 1) - self.bias - self.fraction)
        return -magnitude if negative else magnitude

    def last_place(self, value: Fraction) -> Fraction:
        """The unit in the last place of numbers of this magnitude."""
        exponent = 1 - self.bias
        while Fraction(2) ** (exponent + 1) <= abs(value):
            exponent += 1
        return Fraction(2) ** (exponent - self.fraction)

    def rounded(self, value: Fraction, *, nearest: bool = True) -> int:
        """Bits of the nearest number, ties to even, or of the next one towards zero. Zero is positive."""
        if value == 0:
            return 0
        unit = self.last_place(value)
        steps = abs(value) / unit
        whole = round(steps) if nearest else int(steps)
        bits = round(unit / self.last_place(Fraction(0)))
        field = bits.bit_length()  # of the unit: 1 for subnormals and the first exponent
        packed = ((field - 1) << self.fraction) + whole
        if packed >= self.infinity:
            packed = self.infinity if nearest else self.infinity - 1
        return packed | (self.sign if value < 0 else 0)


FLOAT32, FLOAT16, BFLOAT16 = Format(23, 8), Format(10, 5), Format(7, 8)
FORMATS = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}


def bits_of(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


# Block floating point.


def block_exponent(values: Sequence[float]) -> int | None:
    """None where a value has no place."""
    if not all(FLOAT32.is_finite(bits_of(value)) for value in values):
        return None
    exponent = -126
    while any(abs(Fraction(float(value))) >= Fraction(2) ** exponent for value in values):
        exponent += 1
    return min(exponent, 127)


def block_scale(exponent: int, workers: int) -> Fraction:
    most = INT_MAX // workers
    if workers < 4:
        most -= most % 4
    return most / Fraction(2) ** (128 if exponent == 127 else exponent)


def block_quantised(value: float, exponent: int, workers: int) -> int:
    return round(Fraction(float(value)) * block_scale(exponent, workers))


# Sums that stick at the ends.


def saturated(a: int, b: int) -> int:
    if a in (INT_MAX, INT_MIN):
        return a
    if b in (INT_MAX, INT_MIN):
        return b
    return min(max(a + b, INT_MIN), INT_MAX)


def fixed(value: float, factor: int) -> int:
    value = float(value)
    if value != value or abs(value) == float("inf") or abs(Fraction(value) * factor) >= INT_MAX:
        return INT_MIN if np.signbit(value) else INT_MAX
    return round(Fraction(value) * factor)


# FPISA.


@dataclass
class Register:
    """One sum: an exponent and a mantissa, or what it met that is no number."""

    exponent: int = 1
    mantissa: int = 0
    met: frozenset[str] = frozenset()
    overflowed: int = 0
    overwritten: int = 0
    not_finite: int = 0

    def add(self, bits: int, form: Format, *, full: bool, guard: int, headroom: int) -> None:
        negative, field, fraction = form.fields(bits)
        if field == form.special:
            self.not_finite += 1
            self.met |= {"nan" if fraction else "-inf" if negative else "+inf"}
        if self.met:
            return
        exponent = max(field, 1)
        mantissa = (fraction | (1 << form.fraction if field else 0)) << guard
        mantissa = -mantissa if negative else mantissa
        ahead = exponent - self.exponent
        if ahead <= 0:
            new = self.mantissa + (mantissa >> -ahead), self.exponent
        elif full:
            new = (self.mantissa >> ahead) + mantissa, exponent
        elif self.mantissa and ahead <= headroom:
            new = self.mantissa + (mantissa << ahead), self.exponent
        else:
            self.overwritten += self.mantissa != 0
            new = mantissa, exponent
        if abs(new[0]) >= 2**31:
            self.overflowed += 1
            self.met |= {"nan"}
        else:
            self.mantissa, self.exponent = new

    def value(self, form: Format, guard: int) -> Fraction:
        return self.mantissa * Fraction(2) ** (self.exponent - form.bias - form.fraction - guard)

    def read(self, form: Format, guard: int, *, nearest: bool) -> int:
        if self.met == {"+inf"}:
            return form.infinity
        if self.met == {"-inf"}:
            return form.infinity | form.sign
        if self.met:
            return form.infinity | 1 << (form.fraction - 1)
        return form.rounded(self.value(form, guard), nearest=nearest)
