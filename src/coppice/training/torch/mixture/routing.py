"""Gates: which experts a token takes, how much of each, and in which rows it is sent to them.

Top-1 as in the Switch Transformer (Fedus et al., JMLR 2022), whose output is weighted with the probability of its
expert; top-2 as in GShard (Lepikhin et al., ICLR 2021), whose two weights add up to one. With a capacity an expert
takes at most so many tokens of a rank, first choices before second ones, by their place; the rest pass it by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ExpertRoutes:
    """What a gate says of T tokens."""

    experts: torch.Tensor  # Experts of each token, T x top
    weights: torch.Tensor  # How much of each, T x top
    kept: torch.Tensor  # Which of them take it, T x top
    probabilities: torch.Tensor  # Of all experts, T x experts


def route(logits: torch.Tensor, top: int, capacity: int | None) -> ExpertRoutes:
    """ExpertRoutes of tokens.

    Args:
        logits: Of T tokens, T x experts.
        capacity: Tokens that an expert takes; None: all.

    Examples:
        >>> found = route(torch.tensor([[2.0, 1.0], [3.0, 0.0]]), 1, 1)
        >>> found.experts.tolist(), found.kept.tolist()
        ([[0], [0]], [[True], [False]])
    """
    probabilities = torch.softmax(logits.float(), dim=1)
    weights, experts = torch.topk(probabilities, top, dim=1)
    if top > 1:
        weights = weights / weights.sum(dim=1, keepdim=True)
    if capacity is None:
        kept = torch.ones_like(experts, dtype=torch.bool)
    else:
        flat = experts.t().reshape(-1)  # all first choices, then all second ones
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=logits.shape[1])
        first = torch.cumsum(counts, 0) - counts
        place = torch.empty_like(flat)
        place[order] = torch.arange(len(flat), device=flat.device) - first[flat[order]]
        kept = (place < capacity).view(top, -1).t()
    return ExpertRoutes(experts, weights, kept, probabilities)


def balance_loss(routes: ExpertRoutes) -> torch.Tensor:
    """The loss that keeps experts equally busy: 1 where they are (Switch Transformer, section 2.2)."""
    experts = routes.probabilities.shape[1]
    taken = torch.bincount(routes.experts[:, 0], minlength=experts).to(routes.probabilities.dtype)
    share = taken / max(1, len(routes.experts))
    return experts * (share * routes.probabilities.mean(dim=0)).sum()


@dataclass(frozen=True)
class RoutedRows:
    """Rows in the order in which they are sent: by piece, rank, place of the expert on it, and token."""

    order: torch.Tensor  # Number of each row among all T x top choices
    # Rows of each piece for each expert of each rank, pieces x ranks x experts of a rank
    counts: torch.Tensor


def routed_rows(
    ranks: torch.Tensor, places: torch.Tensor, kept: torch.Tensor, *, pieces: int, shape: tuple[int, int]
) -> RoutedRows:
    """The rows of T tokens.

    Args:
        ranks: Rank that each choice goes to, T x top.
        places: Place there of its expert, T x top.
        kept: Choices that are sent, T x top.
        pieces: Tokens are cut in so many pieces in a row.

    Examples:
        >>> ranks, places = torch.tensor([[1], [0], [1], [0]]), torch.zeros(4, 1, dtype=torch.long)
        >>> found = routed_rows(ranks, places, places == 0, pieces=2, shape=(2, 1))
        >>> found.order.tolist(), found.counts.flatten().tolist()
        ([1, 0, 3, 2], [1, 1, 1, 1])
    """
    tokens = len(ranks)
    piece = torch.arange(tokens, device=ranks.device) * pieces // max(1, tokens)
    key = ((piece[:, None] * shape[0] + ranks) * shape[1] + places).reshape(-1)
    sent = torch.nonzero(kept.reshape(-1)).flatten()
    order = sent[torch.argsort(key[sent], stable=True)]
    counts = torch.bincount(key[sent], minlength=pieces * shape[0] * shape[1])
    return RoutedRows(order, counts.view(pieces, *shape))
