"""Registry of presets: make a preset of a builder function, and parse its parameters from text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar, get_type_hints

from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.composition.compose import Host
from coppice.topology.model import Topology, exact_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetParameter:
    """One parameter of a preset."""

    name: str  # As a keyword of the builder
    parse: Callable[[str, str], Any]  # From text to the builder's value; raises InputError
    default: str  # As text, for the list
    description: str  # One line


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A named topology with parameters."""

    name: str  # As on the command line
    description: str  # One line
    source: str  # Where the figures come from
    parameters: tuple[PresetParameter, ...]  # What may be set
    build: Callable[..., Topology]  # Builds it from keyword arguments named as the parameters
    # For a GPU box: builds one box with its network ports, from the same arguments without the fabric's
    host: Callable[..., Host] | None = None

    def values(self, options: Mapping[str, str]) -> dict[str, Any]:
        """Keyword arguments for the builder from option texts."""
        known = {parameter.name: parameter for parameter in self.parameters}
        values = {}
        for key, value in options.items():
            if key not in known:
                names = suggestion(key, known) if known else "it has none."
                raise InputError(f"preset {self.name} has no parameter {key[:80]!r}: {names}")
            values[key] = known[key].parse(value, key)
        return values


_Build = TypeVar("_Build", bound=Callable[..., Topology])

Rate = int | Fraction
"""A rate in GB/s, or a ratio."""
Rates = int | Fraction | Sequence[int | Fraction]
"""One rate in GB/s for all links, or several."""


def listed_in(presets: list[Preset], *, description: str, source: str) -> Callable[[_Build], _Build]:
    """Decorator that registers a builder as a preset named after it, with hyphens.

    What may be set are the builder's arguments, annotated with words about each: ``Annotated[int, "number of GPUs"]``.
    Further words say how the builder chooses an argument that is not given, where the default itself does not.
    """

    def add(build: _Build) -> _Build:
        hints = get_type_hints(build, include_extras=True)
        parameters = []
        for name, each in inspect.signature(build).parameters.items():
            kind, (about, *chosen) = hints[name].__origin__, hints[name].__metadata__
            default = chosen[0] if chosen else _default_text(each.default)
            parameters.append(
                PresetParameter(name=name, parse=_PARSERS[kind], default=default, description=about)
            )
        presets.append(
            Preset(
                name=build.__name__.replace("_", "-"),
                description=description,
                source=source,
                parameters=tuple(parameters),
                build=build,
            )
        )
        return build

    return add


def number_of(name: str, default: int | str, description: str) -> PresetParameter:
    """An integer parameter; ``default`` describes how the builder chooses it when it is not given."""
    return PresetParameter(name=name, parse=integer, default=str(default), description=description)


def _default_text(value: object) -> str:
    """A default as an option would write it.

    >>> _default_text((4, 4)), _default_text(False)
    ('4x4', 'false')
    """
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def text(value: str, key: str) -> str:  # noqa: ARG001 - the signature of every parser
    """Return the text itself."""
    return value


def integer(value: str, key: str) -> int:
    """Parse a whole number.

    >>> integer("12", "boxes")
    12
    """
    if not value.strip().isdecimal() or len(value) > 9:
        raise InputError(f"expected a whole number for {key}, found {value[:40]!r}: write it in digits.")
    return int(value)


def integers(value: str, key: str) -> tuple[int, ...]:
    """Parse whole numbers separated by ``x`` or commas: ``4x8``.

    >>> integers("4x4x8", "dims")
    (4, 4, 8)
    """
    try:
        return tuple(integer(part, key) for part in value.replace("x", ",").split(","))
    except InputError:
        raise InputError(
            f"expected whole numbers such as 4x4x8 for {key}, found {value[:40]!r}: join them by x."
        ) from None


def rate(value: str, key: str) -> Fraction:
    """Parse a rate in GB/s, exactly."""
    return exact_rate(value.strip(), where=key)


def rate_list(value: str, key: str) -> tuple[Fraction, ...]:
    """Parse rates separated by commas; a single one applies to all.

    >>> rate_list("1,3/2", "gb_per_s")
    (Fraction(1, 1), Fraction(3, 2))
    """
    return tuple(rate(part, key) for part in value.split(","))


def truth(value: str, key: str) -> bool:
    """Parse yes or no."""
    if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise InputError(f"expected true or false for {key}, found {value!r}.")
    return value.lower() in ("true", "yes", "1")


_PARSERS: dict[Any, Callable[[str, str], Any]] = {
    int: integer,
    int | None: integer,
    bool: truth,
    Rate: rate,
    Rates: rate_list,
    Sequence[int]: integers,
}
"""How a builder's argument is read from text, by its type."""
