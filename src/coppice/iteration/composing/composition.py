"""Compositions of policies, one per kind: pipeline order, gradients, tensor parallelism, whole iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coppice.errors import InputError
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.policies.step_plans import BASELINE
from coppice.text import suggestion


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Compatible policies of different kinds.

    Raises:
        InputError: If two decide the same.
    """

    policies: tuple[ConfiguredPolicy, ...] = ()  # The policies; none: the baseline, in which nothing overlaps

    def __post_init__(self) -> None:
        decided: dict[str, str] = {}
        for policy in self.policies:
            for question in sorted(policy.decides):
                if question in decided:
                    both = f"{decided[question]} and {policy.name}, which both decide {question}"
                    raise InputError(
                        f"expected policies that decide different things, found {both}: leave one out."
                    )
                decided[question] = policy.name

    @property
    def name(self) -> str:
        """Joined names."""
        return "+".join(policy.name for policy in self.policies) or BASELINE

    @property
    def staleness(self) -> int:
        """Gradient staleness in iterations."""
        return max((policy.staleness for policy in self.policies), default=0)


def named_policies(text: str) -> list[str]:
    """Parse a text such as ``dear+breadth-first``; ``none`` is the baseline."""
    names = [name for each in text.split("+") if (name := each.strip()) != BASELINE]
    for name in names:
        if name not in POLICIES:
            near = suggestion(name, POLICIES)
            raise InputError(f"expected policies such as ddp or dear+breadth-first, found {name!r}: {near}")
    return names


def owners_of(key: str, names: Sequence[str]) -> list[str]:
    """Policies with an option of a name, or of ``POLICY.OPTION``.

    Examples:
        >>> owners_of("partition", ["bytescheduler", "1f1b"]), owners_of("1f1b.stages", ["modulo", "1f1b"])
        (['bytescheduler'], ['1f1b'])
    """
    owner, _, option = key.rpartition(".")
    return [name for name in names if POLICIES[name].option_named(option) is not None and owner in ("", name)]


def composition_of(
    text: str, settings: Mapping[str, Any] | None = None, *, ranks: int | None = None
) -> Composition:
    """Compose policies by names such as ``dear+breadth-first``.

    Args:
        text: Names with ``+`` between them; ``none`` is the baseline.
        settings: Options by name; ``POLICY.OPTION`` where several policies have an option of that name.
        ranks: Ranks of a tensor-parallel group, for policies that ask for them and are not told.

    Examples:
        >>> composition_of("dear+breadth-first", {"chunks": 4}).name
        'dear+breadth-first'
    """
    names = named_policies(text)
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in (settings or {}).items():
        owners = owners_of(key, names)
        if len(owners) != 1:
            has = ", ".join(
                f"{name}.{each}" for name in names for each in POLICIES[name].options.__struct_fields__
            )
            found = "none of them has" if not owners else f"{' and '.join(owners)} have"
            raise InputError(
                f"expected an option of {text}, found {key!r}, which {found}: they take {has or 'none'}."
            )
        given[owners[0]][key.rpartition(".")[2]] = value
    for name, own in given.items():
        if ranks is not None and "ranks" in POLICIES[name].options.__struct_fields__:
            own.setdefault("ranks", max(2, ranks))  # a group of one exchanges nothing, whatever the policy
    return Composition(policies=tuple(POLICIES[name].of(**given[name]) for name in names))
