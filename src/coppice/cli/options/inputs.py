"""Options that several commands share: topologies, problems, logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from coppice.cli import with_flags
from coppice.cli.output import print_note
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import option, parse_settings
from coppice.options.names import COST_INPUTS, RCCL_INPUTS
from coppice.options.shared import (
    BoxesOption,
    CollectiveOption,
    DemandsOption,
    RanksOption,
    RatesOption,
    RelaysOption,
    RootOption,
    RoundOption,
    SetOption,
    TopologyArgument,
    WeightsOption,
)

if TYPE_CHECKING:
    from coppice.bounds.problem import Problem
    from coppice.logs.records import Log
    from coppice.topology import Topology


class TopologyOptions(Struct, frozen=True, kw_only=True):
    """Topology options; those that a command does not offer have their defaults.

    The fields are the parameters of :func:`load_topology`.
    """

    topology: TopologyArgument
    boxes: BoxesOption = None
    rates: RatesOption = None
    settings: SetOption = None
    ranks: RanksOption = None
    relays: RelaysOption = False
    round_digits: RoundOption = None

    def load(self) -> Topology:
        """Load the topology, as :func:`load_topology`."""
        return load_topology(
            self.topology,
            boxes=self.boxes,
            rates=self.rates,
            settings=self.settings,
            ranks=self.ranks,
            relays=self.relays,
            round_digits=self.round_digits,
        )


def load_topology(
    spec: str,
    *,
    boxes: int | None = None,
    rates: str | None = None,
    settings: Sequence[str] | None = None,
    ranks: str | None = None,
    relays: bool = False,
    round_digits: int | None = None,
) -> Topology:
    """Load the topology of a command line, printing reader warnings on standard error.

    Args:
        spec: Preset name, file name, or ``-``.
        boxes: Number of boxes of a preset.
        rates: ``nominal`` or ``measured``, for a preset.
        settings: ``KEY=VALUE`` parameters of a preset.
        ranks: Ranks that take part, as text (see :func:`parse_ranks`); None takes all.
        relays: GPUs that do not take part may forward.
        round_digits: Decimals to which rates are rounded.

    Raises:
        InputError: If the topology cannot be had as asked.
    """
    from coppice.topology import round_rates, subset
    from coppice.topology.sources import resolve_reading

    options = settings_with_rates(settings, rates)
    reading = resolve_reading(spec, boxes=boxes, options=options)
    print_reader_warnings(reading.warnings)
    topology = reading.topology
    if round_digits is not None:
        topology = round_rates(topology, round_digits)
    if ranks is not None:
        topology = subset(topology, parse_ranks(ranks), relays=relays)
    return topology


def settings_with_rates(
    settings: Sequence[str] | None, rates: str | None, *, option: str = "--set"
) -> dict[str, str]:
    """Parameters of ``settings``, with the class of rates from its own option.

    Args:
        settings: ``KEY=VALUE`` texts.
        rates: What ``--rates`` gives.
        option: The option that the settings were given to, for messages.

    >>> settings_with_rates(["nics=node"], "measured")
    {'nics': 'node', 'rates': 'measured'}

    Raises:
        InputError: If a text has no ``=``, a key repeats, or both give the rates.
    """
    options = parse_settings(settings or (), option=option)
    if rates is not None:
        if "rates" in options:
            raise InputError(
                f"expected the rates once, found --rates {rates} and {option} rates={options['rates']}: keep one."
            )
        options["rates"] = rates
    return options


def sorted_settings(settings: list[str] | None, library: str) -> tuple[dict[str, str], list[str]]:
    """Inputs of the cost model, and parameters of a preset."""
    parsed = parse_settings(settings or ())
    name = "nccl" if library.startswith("nccl-") else library
    known = {"nccl": COST_INPUTS, "rccl": RCCL_INPUTS}.get(name, ())
    inputs = {key: value for key, value in parsed.items() if key in known}
    return inputs, [f"{key}={value}" for key, value in parsed.items() if key not in inputs]


def parse_ranks(text: str, *, option: str = "--ranks") -> list[int]:
    """Parse ranks such as ``0,1,2`` or ``0-7,16``.

    Args:
        text: The text.
        option: The option that it was given to, for messages.

    >>> parse_ranks("0-2,7")
    [0, 1, 2, 7]

    Raises:
        InputError: If the text is not such a list.
    """
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = (first, last) if dash else (first,)
        if any(not number.isdecimal() or len(number) > 7 for number in numbers):
            raise InputError(
                f"expected ranks such as 0,1,2 or 0-7,16, found {part.strip()!r} in {option} {text}."
            )
        low, high = int(numbers[0]), int(numbers[-1])
        if high < low:
            raise InputError(
                f"expected a range of ranks from low to high, found {part.strip()!r}: write {high}-{low}."
            )
        ranks.extend(range(low, high + 1))
    return ranks


def print_reader_warnings(warnings: Iterable[str]) -> None:
    """Print the assumptions of a topology reader, with the option that overrides each."""
    for warning in warnings:
        print_note(f"warning: {with_flags(warning, {'settings': '--set'})}")


class ProblemOptions(TopologyOptions, frozen=True, kw_only=True):
    """Options of a collective on a topology."""

    collective: CollectiveOption = Collective.ALL_REDUCE
    root: RootOption = None
    weights: WeightsOption = None
    demands: DemandsOption = None

    def load_problem(self) -> Problem:
        """Problem of the options; a rooted collective without ``--root`` has root 0."""
        from coppice.bounds.demands import read_demands
        from coppice.bounds.problem import Problem, read_weights

        weights, demands = self.weights, self.demands
        if weights is not None and self.collective is Collective.ALL_TO_ALL:
            if demands is not None:
                raise InputError("an all_to_all has --demands only, found --weights as well: leave it out.")
            print_note("note: --weights of an all_to_all is now --demands.")
            weights, demands = None, weights
        topology = self.load()
        return Problem(
            topology=topology,
            collective=self.collective,
            root=0 if self.collective.rooted and self.root is None else self.root,
            demands=None if demands is None else read_demands(demands, topology.num_ranks),  # type: ignore[arg-type]
            weights=None if weights is None else read_weights(weights),
        )


RunOption = Annotated[
    str | None,
    option("What nccl-tests ran, for versions that do not print it.", "--collective", metavar="NAME"),
]


def collective_run(name: str | None) -> Collective | None:
    """Collective of ``--collective``.

    Raises:
        InputError: If there is none of that name.
    """
    from coppice.logs.records import collective_named

    found = None if name is None else collective_named(name)
    if name is not None and found is None:
        raise InputError(f"expected --collective with a name such as all_reduce, found {name!r}.")
    return found


def print_warnings(logs: Sequence[Log]) -> None:
    """Print warnings of log readers on standard error."""
    for log in logs:
        for warning in log.warnings:
            print_note(f"warning: {warning.rstrip('.')}.")
