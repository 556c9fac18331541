"""Whole-step policies by name."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.policies.whole.centauri import Centauri
from coppice.iteration.policies.whole.lina import Lina
from coppice.iteration.policies.whole.policy import WholePolicy
from coppice.iteration.policies.whole.syndicate import Syndicate

WHOLE_POLICIES: dict[str, type[WholePolicy]] = {each.name: each for each in (Lina, Syndicate, Centauri)}


def whole_policy_named(name: str) -> type[WholePolicy]:
    """Look up a whole-step policy."""
    if name not in WHOLE_POLICIES:
        raise InputError(
            f"expected a policy of the whole iteration ({', '.join(WHOLE_POLICIES)}), found {name!r}."
        )
    return WHOLE_POLICIES[name]
