"""Registry of the systems with a closed form and of the protocols of switches; estimates over a range of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.systems.atp import ATP, atp
from coppice.innetwork.systems.camdoop import CAMDOOP, camdoop
from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate, SwitchProtocol
from coppice.innetwork.systems.fpisa import FPISA, fpisa
from coppice.innetwork.systems.hosts import YARDSTICKS
from coppice.innetwork.systems.netagg import NETAGG, netagg
from coppice.innetwork.systems.netreduce import NETREDUCE, netreduce
from coppice.innetwork.systems.nvls import nvls, nvls_tree
from coppice.innetwork.systems.sharp import SHARP, sharp_v1, sharp_v2, sharp_v3
from coppice.innetwork.systems.switchagg import SWITCHAGG, switchagg
from coppice.innetwork.systems.switchml import SWITCHML, switchml
from coppice.innetwork.systems.windows import STREAMING, streaming
from coppice.text import suggestion

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import SystemSweepJson


SYSTEMS: dict[str, Callable[[AggregationCase, int], AggregationEstimate]] = {
    "switchml": switchml,
    "fpisa": fpisa,
    "atp": atp,
    "netreduce": netreduce,
    "streaming": streaming,
    "switchagg": switchagg,
    "netagg": netagg,
    "camdoop": camdoop,
    "sharp-v1": sharp_v1,
    "sharp": sharp_v2,
    "sharp-v3": sharp_v3,
    "nvls": nvls,
    "nvls-tree": nvls_tree,
}
"""Systems that aggregate in the network; `sharp` is its second version."""

MODELLED = {**SYSTEMS, **YARDSTICKS}
"""The same and the hosts by themselves."""


def named_system(name: str, known: Iterable[str] = SYSTEMS) -> str:
    """Resolve a system's name.

    Examples:
        >>> named_system("NVLS-Tree")
        'nvls-tree'
    """
    plain = name.strip().lower().replace("_", "-")
    if plain in known:
        return plain
    hint = suggestion(plain, known)
    if plain in YARDSTICKS:  # on a cluster these are schedules like others
        hint = f"hosts carry out {plain} by themselves: `coppice compare` simulates it on a topology."
    raise InputError(f"expected a system that aggregates, found {name!r}: {hint}")


@checked
def estimate(system: str, case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate one system, or a baseline of hosts (ring, sharded-ps, tree, ps), in a case.

    Args:
        size_bytes: Bytes of the tensor, 1 or more.

    Examples:
        >>> from fractions import Fraction
        >>> found = estimate("sharp", AggregationCase(workers=8, gb_per_s=Fraction(25)), 2**20)
        >>> round(found.time_us, 2), found.model
        (47.94, 'x/B + ceil(log_r n) RTT')
    """
    if size_bytes < 1:
        raise InputError(f"expected a size of 1 byte or more, found {size_bytes}.")
    return MODELLED[named_system(system, MODELLED)](case, size_bytes)


@checked
def estimates(
    systems: Iterable[str], case: AggregationCase, size_bytes: int
) -> tuple[list[AggregationEstimate], dict[str, str]]:
    """Estimate several systems in a case, with the reasons why others do not apply.

    Returns:
        The estimates in the order of the names, and a sentence for each system without one.

    Examples:
        >>> from fractions import Fraction
        >>> found, refused = estimates(["ring", "camdoop"], AggregationCase(workers=8, gb_per_s=Fraction(1)), 8)
        >>> [each.system for each in found], refused["camdoop"]
        (['ring'], 'expected the workers of a 3D torus, 27, 64, 125, ..., found 8: Camdoop needs one.')
    """
    found, refused = [], {}
    for name in [named_system(each, MODELLED) for each in systems]:
        try:
            found.append(estimate(name, case, size_bytes))
        except InputError as error:
            if size_bytes < 1:
                raise
            refused[name] = str(error)
    return found, refused


# One line each, in alphabetical order.
PROTOCOLS: dict[str, SwitchProtocol] = {
    each.name: each
    for each in (
        ATP,
        CAMDOOP,
        FPISA,
        NETAGG,
        NETREDUCE,
        SHARP,
        STREAMING,
        SWITCHAGG,
        SWITCHML,
    )
}  # fmt: skip


def find_protocol(name: str) -> SwitchProtocol:
    """Look up the protocol of a name.

    >>> find_protocol("switchml").most_workers
    32
    """
    found = PROTOCOLS.get(name)
    if found is None:
        raise InputError(
            f"expected a protocol of aggregation in the network, found {name!r}: {suggestion(name, PROTOCOLS)}"
        )
    return found


SWEEPS: Mapping[str, tuple[float, ...]] = {
    "workers": (2, 4, 8, 16, 32, 64, 128),
    "slots": (16, 32, 64, 128, 256, 512, 1024),
    "loss": (0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
}
"""What is swept, and over which values."""


@dataclass(frozen=True, kw_only=True)
class AggregationSweep:
    """Estimates of several systems at each value of a range."""

    over: str  # What changes: workers, slots or loss
    values: tuple[float, ...]  # Its values
    size_bytes: int  # Bytes of the tensor
    # By system, the estimate at each value, None where it does not suit
    found: Mapping[str, tuple[AggregationEstimate | None, ...]]
    refused: Mapping[str, str]  # Why a system suits at no value

    def goodput(self, system: str) -> list[float | None]:
        """Bytes of the tensor over its time at each value, in GB/s.

        Args:
            system: Name of a system that suits somewhere.
        """
        return [
            None if each is None else self.size_bytes / each.time_us / 1000 for each in self.found[system]
        ]

    def record(self) -> SystemSweepJson:
        """The estimates as JSON values."""
        swept = {
            name: [None if each is None else each.record() for each in row]
            for name, row in self.found.items()
        }
        return {
            "over": self.over,
            "values": list(self.values),
            "size_bytes": self.size_bytes,
            "swept_systems": swept,
            "systems": swept,
            "refusals": dict(self.refused),
        }


@checked
def sweep(
    systems: Iterable[str],
    case: AggregationCase,
    size_bytes: int,
    *,
    over: str,  # `workers`, `slots` or `loss`
    values: Sequence[float] | None = None,  # Values to take; None: those of :data:`SWEEPS`
) -> AggregationSweep:
    """Estimate several systems at each value of a range.

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2))
        >>> found = sweep(["switchml"], case, 10**9, over="slots", values=[32, 64, 128])
        >>> [round(8 * rate) for rate in found.goodput("switchml")]
        [43, 86, 93]
    """
    if over not in SWEEPS:
        raise InputError(
            f"expected a sweep over workers, slots or loss, found {over!r}: {suggestion(over, SWEEPS)}"
        )
    points = tuple(SWEEPS[over] if values is None else values)
    names = [named_system(each, MODELLED) for each in systems]
    rows: dict[str, list[AggregationEstimate | None]] = {}
    why: dict[str, str] = {}
    for value in points:
        changed = replace(case, **{over: value if over == "loss" else int(value)})  # type: ignore[arg-type]
        found, refused = estimates(names, changed, size_bytes)
        here = {each.system: each for each in found}
        for name in [*here, *refused]:
            rows.setdefault(name, [])
        for name, row in rows.items():
            row.append(here.get(name))
        for name, words in refused.items():
            why.setdefault(name, words)
    order = [each for each in dict.fromkeys(names) if any(rows.get(each, ()))]
    return AggregationSweep(
        over=over,
        values=points,
        size_bytes=size_bytes,
        found={name: tuple(rows[name]) for name in order},
        refused={name: words for name, words in why.items() if name not in order},
    )
