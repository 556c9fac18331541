"""The list of presets: what each is, where its figures come from, and which parameters it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.composition.compose import Host
from coppice.topology.model import Topology, exact_rate

__all__ = ["Parameter", "Preset", "integer", "integers", "rate", "rate_list", "text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One parameter of a preset.

    Attributes:
        name: As a keyword of the builder and in ``--set name=value``.
        parse: From text to the builder's value; raises InputError.
        default: As text, for the list.
        description: One line.
    """

    name: str
    parse: Callable[[str, str], Any]
    default: str
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A named topology with parameters.

    Attributes:
        name: As on the command line.
        description: One line.
        source: Where the figures come from.
        parameters: What may be set.
        build: Builds it from keyword arguments named as the parameters.
        host: For a GPU box: builds one box with its network ports, from the same arguments without the
            fabric's.
    """

    name: str
    description: str
    source: str
    parameters: tuple[Parameter, ...]
    build: Callable[..., Topology]
    host: Callable[..., Host] | None = None

    def values(self, options: Mapping[str, str]) -> dict[str, Any]:
        """Keyword arguments for the builder from option texts.

        Raises:
            InputError: If the preset has no such parameter, or a value is not one.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        values = {}
        for key, value in options.items():
            if key not in known:
                names = suggestion(key, known) if known else "it has none."
                msg = f"preset {self.name} has no parameter {key[:80]!r}: {names}"
                raise InputError(msg)
            values[key] = known[key].parse(value, key)
        return values


def text(value: str, key: str) -> str:  # noqa: ARG001 - the signature of every parser
    """The text itself."""
    return value


def integer(value: str, key: str) -> int:
    """A whole number.

    >>> integer("12", "boxes")
    12

    Raises:
        InputError: If it is none.
    """
    if not value.strip().isdecimal() or len(value) > 9:
        msg = f"expected a whole number for {key}, found {value[:40]!r}."
        raise InputError(msg)
    return int(value)


def integers(value: str, key: str) -> tuple[int, ...]:
    """Whole numbers separated by ``x`` or commas: ``4x4x8``.

    >>> integers("4x4x8", "dims")
    (4, 4, 8)

    Raises:
        InputError: If one of them is none.
    """
    return tuple(integer(part, key) for part in value.replace("x", ",").split(","))


def rate(value: str, key: str) -> Fraction:
    """A rate in GB/s, exactly.

    Raises:
        InputError: If it is none.
    """
    return exact_rate(value.strip(), where=key)


def rate_list(value: str, key: str) -> tuple[Fraction, ...]:
    """Rates separated by commas; one stands for all.

    >>> rate_list("1,3/2", "gb_per_s")
    (Fraction(1, 1), Fraction(3, 2))

    Raises:
        InputError: If one of them is none.
    """
    return tuple(rate(part, key) for part in value.split(","))
