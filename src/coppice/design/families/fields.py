"""Arithmetic of finite fields, as tables.

An element of the field of q = p^k elements is a number below q whose digits in base p are the coefficients of a
polynomial; products are taken modulo the first irreducible polynomial of degree k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product

__all__ = ["Field", "field", "prime_power"]


@dataclass(frozen=True)
class Field:
    """Tables of a field: ``plus[a][b]``, ``times[a][b]``, ``minus[a]`` (-a) and ``inverse[a]`` (0 for 0)."""

    order: int
    plus: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]
    minus: tuple[int, ...]
    inverse: tuple[int, ...]


def prime_power(q: int) -> tuple[int, int] | None:
    """(p, k) with q = p^k, or None.

    >>> prime_power(9), prime_power(7), prime_power(12), prime_power(1)
    ((3, 2), (7, 1), None, None)
    """
    p = next((divisor for divisor in range(2, q + 1) if q % divisor == 0), 0)
    k = 0
    while p and q % p == 0:
        q, k = q // p, k + 1
    return (p, k) if p and q == 1 else None


@lru_cache(maxsize=16)
def field(q: int) -> Field:
    """The field of q elements, q a power of a prime.

    Examples:
        >>> four = field(4)
        >>> four.times[2][2], four.plus[3][3], four.inverse[2]
        (3, 0, 3)
    """
    found = prime_power(q)
    if found is None:
        msg = f"a field has a power of a prime of elements, found {q}"
        raise ValueError(msg)
    p, k = found
    digits = [tuple(a // p**i % p for i in range(k)) for a in range(q)]
    plus = _table(digits, lambda a, b: [(x + y) % p for x, y in zip(a, b, strict=True)], p)
    # Modulo x^k + low; that is irreducible if no product of others is 0.
    tables = (_table(digits, partial(_product, low, p), p) for low in digits)
    times = next(table for table in tables if all(0 not in row[1:] for row in table[1:]))
    return Field(
        order=q,
        plus=plus,
        times=times,
        minus=tuple(row.index(0) for row in plus),
        inverse=(0, *(row.index(1) for row in times[1:])),
    )


def _product(low: tuple[int, ...], p: int, a: tuple[int, ...], b: tuple[int, ...]) -> list[int]:
    """The product of two polynomials modulo x^k + low."""
    k = len(a)
    whole = [0] * (2 * k)
    for (i, x), (j, y) in product(enumerate(a), enumerate(b)):
        whole[i + j] += x * y
    for place in range(2 * k - 1, k - 1, -1):
        for i, c in enumerate(low):
            whole[place - k + i] -= whole[place] * c
    return [c % p for c in whole[:k]]


def _table(
    digits: list[tuple[int, ...]], operation: Callable[[tuple[int, ...], tuple[int, ...]], list[int]], p: int
) -> tuple[tuple[int, ...], ...]:
    """The values of an operation on all pairs of elements."""
    return tuple(tuple(sum(c * p**i for i, c in enumerate(operation(a, b))) for b in digits) for a in digits)
