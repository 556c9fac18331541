"""Export tuner tables: CSV files for NCCL, RCCL and NCCLX that choose algorithm, protocol and channels.

    nvidia-example    the example plugin of NCCL 2.27.7 to 2.32: sizes in bytes of the whole array, exact shapes
    rccl-builtin      RCCL 2.28.3 and later, without a plugin: the same columns
    ncclx             NCCLX, without a plugin: intervals of bytes per rank, nodes, and ranks per node
    coppice           the plugin of `coppice tune plugin build`, for NCCL 2.22 and later: the columns of rccl-builtin

They differ in what happens where no rule holds. RCCL, NCCLX and Coppice's plugin go on as without a table. The example
plugin then runs every call on one channel, so that its table names something for all collectives, sizes and shapes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from coppice.arguments import expect_one_of
from coppice.errors import InputError
from coppice.export.formats import Dialect, Exported, NcclTunerOptions
from coppice.fitting.nccl_tuner import (
    ALGORITHMS,
    COLLECTIVES,
    NO_END,
    TunerRule,
    further_rules,
    model_timings,
    read_timings,
    rules_of,
)
from coppice.topology.model import Topology
from coppice.version import __version__

_MOST_LINE = 255
_VERSION = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){1,2}")
FIRST_WITH_PAT = (2, 23)
"""First version of NCCL whose table of times has a row for PAT."""
_SMALL = 65_536
"""Up to this size the lines for shapes without times name LL, Simple beyond."""


def algorithms_of(dialect: Dialect) -> tuple[str, ...]:
    """Algorithms that a dialect can name."""
    return ("tree", "ring", "pat") if dialect is Dialect.RCCL_BUILTIN else tuple(ALGORITHMS.values())


_USE = {
    Dialect.NVIDIA_EXAMPLE: "NCCL_TUNER_CONFIG_FILE=FILE with the example plugin of 2.30.3 or later as "
    "NCCL_TUNER_PLUGIN (2.27.7 to 2.29.7 crash at the first line that holds); that plugin also changes constants of "
    "the cost model, and runs whatever the file does not cover on one channel: better take `dialect=coppice`",
    Dialect.RCCL_BUILTIN: "NCCL_TUNER_CONFIG_FILE=FILE with RCCL 2.28.3 or later and no other tuner; it replaces the "
    "tables that RCCL brings along, as a whole",
    Dialect.NCCLX: "NCCLX_TUNER_CONFIG_FILE=ABSOLUTE-PATH; with a line that it cannot read no communicator is made",
    Dialect.COPPICE: "NCCL_TUNER_PLUGIN=libnccl-tuner-coppice.so (`coppice tune plugin build`) and "
    "COPPICE_TUNER_TABLE=FILE; a file with a line that it cannot read is refused as a whole",
}


def export_nccl_tuner(topology: Topology, options: NcclTunerOptions) -> Exported:
    """Export a tuner table for communicators of all ranks, from measured times or NCCL's cost model."""
    expect_one_of("dialect", options.dialect, Dialect)
    chosen, times, library = Dialect(options.dialect), options.times, options.library
    assumptions: tuple[str, ...] = ()
    if times is not None:
        if options.model is not None:
            raise InputError(
                "measured times leave nothing to the cost model: give either times or inputs of the model."
            )
        rows, origin = read_timings(times), f"measured times of {times.name}"
    elif chosen is Dialect.RCCL_BUILTIN:
        raise InputError("the cost model is that of NCCL, not of RCCL: give measured times (`times=FILE`).")
    else:
        rows, assumptions = model_timings(topology, options.sizes, settings=_settings(options.model))
        origin = "predicted by the cost model of NCCL 2.30"
    if library is not None and not _VERSION.fullmatch(library):
        raise InputError(f"expected a version of the library such as 2.27.7, found {library!r}.")
    old = library is not None and tuple(map(int, library.split("."))) < FIRST_WITH_PAT
    rules = rules_of(
        rows,
        algorithms=tuple(each for each in algorithms_of(chosen) if each != "pat" or not old),
        keep_default=chosen is not Dialect.NVIDIA_EXAMPLE,
    )
    if not rules:
        raise InputError(
            "nothing is gained on the library's own choice at any size: there is no table to write."
        )
    derived = further_rules(rules, options.shapes, any_allowed=chosen is Dialect.NCCLX)
    text = tuner_table(
        (*rules, *derived),
        chosen,
        comments=(
            f"tuner table ({chosen}) by coppice {__version__}, {origin}",
            f"topology {topology.name} {topology.sha256[:16]}",
            *([] if library is None else [f"library {library}"]),
        ),
    )
    measured = times is not None
    return Exported(
        text=text,
        notes=(
            f"{len(rules)} rules, {origin}" + ("" if measured else ": measure before you rely on them"),
            *(f"assumed: {words}" for words in assumptions),
            *_gain_notes(rules),
            *(
                [f"{len(derived)} rules for further shapes by equal bytes per rank: measure them"]
                if derived
                else []
            ),
            _USE[chosen],
            "every rank must read the same file",
        ),
        suffix=".csv",
        read_as="nccl-tuner",
        known={"dialect": str(chosen), **({} if library is None else {"version": library})},
    )


def tuner_table(rules: Sequence[TunerRule], dialect: Dialect, *, comments: Sequence[str] = ()) -> str:
    """Encode a tuner table.

    Args:
        rules: The rules, in the order in which they are tried.

    Examples:
        >>> from coppice.collectives import Collective
        >>> rule = TunerRule(collective=Collective.ALL_GATHER, first_bytes=0, last_bytes=NO_END, nodes=2, ranks=16,
        ...             algorithm="ring", protocol="ll")
        >>> tuner_table([rule], Dialect.NCCLX).splitlines()[-1]
        'allgather,[0,),ring,ll,-1,2,8'
        >>> tuner_table([rule], Dialect.RCCL_BUILTIN).splitlines()[-1]
        'allgather,0,18446744073709551615,ring,ll,-1,2,16'
    """
    wrong = next((rule for rule in rules if rule.algorithm not in algorithms_of(dialect)), None)
    if wrong is not None:
        raise InputError(
            f"{dialect} has no algorithm {wrong.algorithm}, only {', '.join(algorithms_of(dialect))}."
        )
    write: Callable[[TunerRule], list[str]] = (
        _ncclx_lines if dialect is Dialect.NCCLX else _byte_lines(dialect)
    )
    body: list[str] = []
    for rule in rules:
        if rule.gain is not None and not rule.fallback:
            body.append(f"# expected: {rule.gain:.3g} times as fast as the default")
        body += write(rule)
    if dialect is Dialect.NVIDIA_EXAMPLE:
        body += [
            "# everything else: where no line holds, the plugin would take one channel",
            *_everything_else(),
        ]
    lines = [f"# {' '.join(comment.split())}"[:_MOST_LINE] for comment in comments]
    digest = hashlib.sha256("".join(f"{line}\n" for line in body).encode()).hexdigest()
    lines += [f"# sha256 of the lines below: {digest}", *body]
    return "".join(f"{line}\n" for line in lines)


def _byte_lines(dialect: Dialect) -> Callable[[TunerRule], list[str]]:
    default = 0 if dialect is Dialect.NVIDIA_EXAMPLE else -1

    def line(rule: TunerRule) -> list[str]:
        fields = (
            COLLECTIVES[rule.collective],
            rule.first_bytes,
            rule.last_bytes,
            rule.algorithm,
            rule.protocol,
            default if rule.channels is None else rule.channels,
            -1 if rule.nodes is None else rule.nodes,
            -1 if rule.ranks is None else rule.ranks,
        )
        return [",".join(map(str, fields))]

    return line


def _everything_else() -> list[str]:
    line = _byte_lines(Dialect.NVIDIA_EXAMPLE)
    return [
        text
        for collective in COLLECTIVES
        for first, last, protocol in ((0, _SMALL, "ll"), (_SMALL + 1, NO_END, "simple"))
        for text in line(
            TunerRule(
                collective=collective,
                first_bytes=first,
                last_bytes=last,
                nodes=None,
                ranks=None,
                algorithm="ring",
                protocol=protocol,
            )
        )
    ]


def _ncclx_lines(rule: TunerRule) -> list[str]:
    """The rule for bytes per rank, which are whole numbers: sizes of one range never share one with the next."""
    if rule.ranks is None or (rule.nodes is None and not rule.any_shape):
        raise InputError(
            "a rule for ncclx needs numbers of nodes and ranks to count bytes per rank, found a rule for any."
        )
    if rule.nodes is not None and rule.ranks % rule.nodes:
        raise InputError(
            f"ncclx counts ranks per node, found {rule.ranks} ranks on {rule.nodes} nodes: use equal nodes."
        )
    first = -(-rule.first_bytes // rule.ranks)
    last = "" if rule.last_bytes == NO_END else str((rule.last_bytes + 1 + rule.ranks - 1) // rule.ranks)
    if last and int(last) <= first:
        return []
    fields = (
        COLLECTIVES[rule.collective],
        f"[{first},{last})",
        rule.algorithm,
        rule.protocol,
        -1 if rule.channels is None else rule.channels,
        "*" if rule.nodes is None else rule.nodes,
        "*" if rule.nodes is None else rule.ranks // rule.nodes,
    )
    return [",".join(map(str, fields))]


def _gain_notes(rules: Sequence[TunerRule]) -> tuple[str, ...]:
    gains = [rule.gain for rule in rules if rule.gain is not None and not rule.fallback]
    if not gains:
        return ()
    return (f"expected gain on the default: {min(gains):.3g} to {max(gains):.3g} times as fast",)


def _settings(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in [] if text is None else text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key.strip() in found:
            raise InputError(
                f"expected inputs of the model such as channels=16,bw_inter=24, each once, found {part!r}."
            )
        found[key.strip()] = value.strip()
    return found
