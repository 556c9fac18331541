"""Slots: where a GPU or NIC sits in the PCIe tree of its machine, as a text that topologies carry along.

Links of a topology say what can be sent; a slot says what a runtime reads off the machine besides: the processor, the
PCIe switches from there to the device with their rates, the order in which a file lists them, and what the device says
of itself. Rates are those of the class ``measured``. A slot is a path of steps ``PLACE.NAME@GB_PER_S``, with facts
``,KEY=VALUE`` behind some of them::

    0.cpu0@16,maker=amd/1.0000:01:00.0@24/2.0000:03:00.0@24,dev=0
    0.cpu0@16,maker=amd/1.0000:01:00.0@24/4.0000:04:00.0@24/5.mlx5_0@25,dev=0,port=1,guid=0x8e20

The last step of a NIC is a port of the network, and its rate that of the port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import InputError

_STEP = re.compile(
    r"([0-9]{1,9})\.([^/@,]{1,80})@([0-9]{1,12}(?:\.[0-9]{1,9})?)((?:,[a-z_0-9]{1,20}=[^/@,]{0,40})*)"
)
_UNFIT = re.compile(r"[/@,]")


@dataclass(frozen=True, slots=True)
class SlotStep:
    """A step of the way from the processor to a device."""

    place: int  # Place among everything that the file lists
    name: str  # Name of the part
    gb_per_s: Fraction  # Rate towards the processor; of a processor: towards the others; of a port: its own
    facts: tuple[tuple[str, str], ...] = ()  # What the part says of itself

    def fact(self, key: str, default: str = "") -> str:
        """A fact by its name."""
        return dict(self.facts).get(key, default)


@dataclass(frozen=True, slots=True)
class Slot:
    """The way from the processor to a device."""

    steps: tuple[SlotStep, ...] = field(default=())

    def below(self, place: int, name: str, gb_per_s: Fraction, **facts: object) -> Slot:
        """This way with one more step; facts of None are left out.

        Examples:
            >>> Slot().below(0, "cpu0", Fraction(16), maker="amd").below(1, "0:3", Fraction(24), dev=0).text
            '0.cpu0@16,maker=amd/1.0:3@24,dev=0'
        """
        kept = tuple(
            (key, _UNFIT.sub("_", str(value))[:40]) for key, value in facts.items() if value is not None
        )
        return Slot((*self.steps, SlotStep(place, _UNFIT.sub("_", name)[:80], gb_per_s, kept)))

    @property
    def text(self) -> str:
        """The slot as text."""
        return "/".join(
            f"{step.place}.{step.name}@{_decimal(step.gb_per_s)}"
            + "".join(f",{key}={value}" for key, value in step.facts)
            for step in self.steps
        )

    @classmethod
    def of(cls, text: str) -> Slot:
        """Parse a slot.

        Examples:
            >>> Slot.of("0.cpu0@16,maker=amd/1.0:3@24,dev=0").steps[1].fact("dev")
            '0'

        Raises:
            InputError: If the text is no slot.
        """
        steps = []
        start = 0
        while True:
            match = _STEP.match(text, start)
            if match is None:
                break
            facts = tuple(
                (key, value) for key, _, value in (each.partition("=") for each in match[4].split(",")[1:])
            )
            steps.append(SlotStep(int(match[1]), match[2], Fraction(match[3]), facts))
            start = match.end()
            if start == len(text):
                return cls(tuple(steps))
            if text[start] != "/":
                break
            start += 1
        raise InputError(
            f"expected a slot (PLACE.NAME@GB_PER_S, with ,KEY=VALUE behind some, joined by /), found {text[:80]!r}."
        )


def _decimal(rate: Fraction) -> str:
    """A short decimal number; rates of machines have few digits."""
    text = f"{float(rate):.6f}".rstrip("0").rstrip(".")
    return text or "0"
