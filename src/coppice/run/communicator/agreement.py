"""Ranks make sure that they are about to do the same thing, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from coppice.run.engines.engine import Engine
from coppice.run.errors import Mismatch

__all__ = ["Value", "agree"]

Value = str | int | bool | None


def agree(engine: Engine, what: str, record: Mapping[str, Value], *, error: str = "") -> None:
    """Compare ``record`` with those of all other ranks.

    Args:
        engine: The group.
        what: What the ranks are about to do, for messages.
        record: Values by name, which must be the same on all ranks.
        error: Why this rank cannot take part, empty if it can.

    Raises:
        Mismatch: On every rank, with the same words but for the rank that speaks, if some rank differs from most
            others or cannot take part.
        RunError: If the exchange fails.

    Examples:
        >>> from coppice.run.engines.numpy import run_ranks
        >>> found = run_ranks(3, lambda engine: agree(engine, "all_reduce", {"count": 5 if engine.rank else 6}))
        >>> print(str(found[2])[:82])
        all_reduce differs between ranks: expected count 5 as on rank 1, found 6 on rank 0
    """
    mine = msgspec.json.encode({"what": what, "error": error, "record": dict(record)})
    rows = [msgspec.json.decode(row) for row in engine.exchange(mine)]
    for rank, row in enumerate(rows):
        if row["error"]:
            msg = f"rank {rank} cannot take part in {row['what']}: {row['error']}"
            raise Mismatch(msg)
    keys = [msgspec.json.encode((row["what"], row["record"]), order="sorted") for row in rows]
    if len(set(keys)) == 1:
        return
    usual = Counter(keys).most_common(1)[0][0]
    model = keys.index(usual)
    odd = next(rank for rank, key in enumerate(keys) if key != usual)
    if rows[odd]["what"] != rows[model]["what"]:
        msg = (
            f"ranks do different things: expected {rows[model]['what']} as on rank {model}, found "
            f"{rows[odd]['what']} on rank {odd}; make the same calls in the same order on all ranks."
        )
        raise Mismatch(msg)
    wanted, found = rows[model]["record"], rows[odd]["record"]
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    here = ", ".join(f"{name} {wanted.get(name)}" for name in names)
    there = ", ".join(f"{found.get(name)}" for name in names)
    msg = (
        f"{what} differs between ranks: expected {here} as on rank {model}, found {there} on rank {odd}; "
        "make the same call on all ranks."
    )
    raise Mismatch(msg)
