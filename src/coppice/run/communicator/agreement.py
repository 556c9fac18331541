"""Check that all ranks are about to do the same thing, before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from coppice.run.errors import Mismatch

__all__ = ["Value", "agree"]

Value = str | int | bool | None


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of itself."""

    what: str
    record: dict[str, Value]
    error: str
    own: Value


def agree(
    exchange: Callable[[bytes], list[bytes]],
    what: str,
    record: Mapping[str, Value],
    *,
    error: str = "",
    own: Value = None,
) -> list[Value]:
    """Compare ``record`` with those of all other ranks.

    Args:
        exchange: Gives every rank the bytes of all, in rank order: that of an engine, or of a store.
        what: What the ranks are about to do, for messages.
        record: Values by name, which must be the same on all ranks.
        error: Why this rank cannot take part, empty if it can.
        own: What may differ between ranks.

    Returns:
        ``own`` of every rank.

    Raises:
        Mismatch: On every rank, with the same words but for the rank that speaks, if some rank differs from most
            others or cannot take part.
        RunError: If the exchange fails.

    Examples:
        >>> from coppice.run.engines.numpy import run_ranks
        >>> def work(engine):
        ...     agree(engine.exchange, "all_reduce", {"count": 5 if engine.rank else 6})
        >>> found = run_ranks(3, work)
        >>> print(str(found[2])[:82])
        all_reduce differs between ranks: expected count 5 as on rank 1, found 6 on rank 0
    """
    mine = msgspec.json.encode(_Card(what=what, record=dict(record), error=error, own=own))
    try:
        cards = [msgspec.json.decode(card, type=_Card) for card in exchange(mine)]
    except msgspec.MsgspecError as found:
        msg = f"expected what another rank is about to do, found something else ({found}): run one version everywhere."
        raise Mismatch(msg) from None
    for rank, card in enumerate(cards):
        if card.error:
            msg = f"rank {rank} cannot take part in {card.what}: {card.error}"
            raise Mismatch(msg)
    keys = [msgspec.json.encode((card.what, card.record), order="sorted") for card in cards]
    if len(set(keys)) == 1:
        return [card.own for card in cards]
    usual = Counter(keys).most_common(1)[0][0]
    model = keys.index(usual)
    odd = next(rank for rank, key in enumerate(keys) if key != usual)
    if cards[odd].what != cards[model].what:
        msg = (
            f"ranks do different things: expected {cards[model].what} as on rank {model}, found "
            f"{cards[odd].what} on rank {odd}; make the same calls in the same order on all ranks."
        )
        raise Mismatch(msg)
    wanted, other = cards[model].record, cards[odd].record
    names = [name for name in {**wanted, **other} if wanted.get(name) != other.get(name)]
    here = ", ".join(f"{name} {_word(wanted.get(name))}" for name in names)
    there = ", ".join(_word(other.get(name)) for name in names)
    msg = (
        f"{what} differs between ranks: expected {here} as on rank {model}, found {there} on rank {odd}; "
        "make the same call on all ranks."
    )
    raise Mismatch(msg)


def _word(value: Value) -> str:
    return "none" if value is None else str(value)
