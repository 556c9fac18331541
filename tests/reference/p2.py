"""P2 by definition: placements by trying all matrices, groups by comparing coordinates, programs by trying all.

Independent of the package: states are dictionaries of sets, devices tuples of digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import prod

Device = tuple[int, ...]
Held = dict[Device, dict[Device, frozenset[Device]]]
"""For each device and chunk, chunks being named like devices, whose contributions it holds."""

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast")


def matrices(rows: Sequence[int], columns: Sequence[int]) -> set[tuple[tuple[int, ...], ...]]:
    """All matrices of whole numbers with these products of rows and columns."""
    entries = product(*(range(1, min(r, c) + 1) for r in rows for c in columns))
    width, found = len(columns), set()
    for flat in entries:
        matrix = tuple(flat[i * width : (i + 1) * width] for i in range(len(rows)))
        if [prod(row) for row in matrix] == list(rows) and [
            prod(c) for c in zip(*matrix, strict=True)
        ] == list(columns):
            found.add(matrix)
    return found


def groups(matrix: Sequence[Sequence[int]], reduced: set[int]) -> set[frozenset[int]]:
    """Devices that agree on all axes but those reduced."""
    axes, levels = len(matrix), len(matrix[0])
    radices = [(axis, matrix[axis][level]) for level in range(levels) for axis in range(axes)]
    found: dict[tuple[tuple[int, ...], ...], set[int]] = {}
    for device, digits in enumerate(product(*(range(size) for _, size in radices))):
        place = tuple(
            tuple(digit for digit, (axis, _) in zip(digits, radices, strict=True) if axis == kept)
            for kept in range(axes)
            if kept not in reduced
        )
        found.setdefault(place, set()).add(device)
    return {frozenset(members) for members in found.values()}


def places(sizes: Sequence[int]) -> Iterator[tuple[tuple[str, int, int], list[list[Device]]]]:
    """Every form with the devices that work together, no set of sets twice."""
    devices = list(product(*(range(n) for n in sizes)))
    depth = len(sizes)
    for s in range(depth):
        yield ("inside", s, s), _split(devices, lambda d, s=s: d[:s])
    for s in range(1, depth):
        for e in range(s):
            yield ("parallel", s, e), _split(devices, lambda d, s=s, e=e: (d[:e], d[s:]))
            first = [d for d in devices if not any(d[s:])]
            yield ("master", s, e), _split(first, lambda d, e=e: d[:e])


def _split(devices: list[Device], key: object) -> list[list[Device]]:
    found: dict[object, list[Device]] = {}
    for device in devices:
        found.setdefault(key(device), []).append(device)  # type: ignore[operator]
    return list(found.values())


def programs(sizes: Sequence[int], most: int) -> set[tuple[tuple[tuple[str, int, int], str], ...]]:
    """All programs of up to ``most`` instructions that end with every device holding everything."""
    devices = list(product(*(range(n) for n in sizes)))
    everything = frozenset(devices)
    begin: Held = {d: {chunk: frozenset([d]) for chunk in devices} for d in devices}
    forms = list(places(sizes))
    found = set()

    def extend(held: Held, program: tuple[tuple[tuple[str, int, int], str], ...]) -> None:
        if all(len(h) == len(devices) and set(h.values()) == {everything} for h in held.values()):
            found.add(program)
            return
        if len(program) == most:
            return
        for form, together in forms:
            for operation in OPERATIONS:
                after = _after(held, together, operation)
                if after is not None and after != held:
                    extend(after, (*program, (form, operation)))

    extend(begin, ())
    return found


def _after(held: Held, together: list[list[Device]], operation: str) -> Held | None:
    after = dict(held)
    for members in together:
        before = [held[d] for d in members]
        if operation == "broadcast":
            master = before[0]
            if not master or not all(
                chunk in master and who <= master[chunk] for h in before for chunk, who in h.items()
            ):
                return None
            new = [master] * len(members)
        elif operation == "all_gather":
            if not before[0] or len({len(h) for h in before}) > 1:
                return None
            if any(set(a) & set(b) for a, b in combinations(before, 2)):
                return None
            union = {chunk: who for h in before for chunk, who in h.items()}
            new = [union] * len(members)
        else:
            if not before[0] or any(set(h) != set(before[0]) for h in before):
                return None
            for a, b in combinations(before, 2):
                if any(a[chunk] & b[chunk] for chunk in a):
                    return None
            total = {chunk: frozenset().union(*(h[chunk] for h in before)) for chunk in before[0]}
            if operation == "all_reduce":
                new = [total] * len(members)
            elif operation == "reduce":
                new = [total] + [{}] * (len(members) - 1)
            else:
                rows = sorted(total)
                if len(rows) % len(members):
                    return None
                part = len(rows) // len(members)
                new = [{c: total[c] for c in rows[n * part : (n + 1) * part]} for n in range(len(members))]
        after.update(zip(members, new, strict=True))
    return after
