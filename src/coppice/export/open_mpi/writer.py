"""Write rules files for Open MPI's coll/tuned: algorithm by ranks and size.

    classic    numbers in a fixed order, for versions before 6.0
    json       Open MPI 6.0 and later

A rule of the classic form holds from its size to the next one, and a list of rules from its number of ranks to the next
one; the first list holds for all smaller numbers, too. Rules for P ranks therefore stand between lists that leave the
choice to Open MPI (number 0): one for 0 ranks, and one for P + 1 ranks where these have no rules of their own. Rules
for a topology come from simulated times of Open MPI's algorithms (:mod:`coppice.fitting.open_mpi`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.formats import Exported, OmpiRulesOptions
from coppice.export.open_mpi.rules_file import form_of, version_of
from coppice.fitting.open_mpi import COMPARED, OmpiChoice, choices_of, compared
from coppice.selection.tables import COLLECTIVES, FUNCTIONS
from coppice.topology.model import Topology
from coppice.version import __version__


@dataclass(frozen=True, kw_only=True)
class OmpiRule:
    """A rule: the algorithm from one size up to the next rule's."""

    first_bytes: int  # Least M
    id: int  # Number of the algorithm, 0 leaves the choice to Open MPI
    fanout: int = 0  # Number of chains, 0 where it has none
    segment_bytes: int = 0  # Size of a segment, 0 for whole messages


def merged(rules: Iterable[OmpiRule]) -> tuple[OmpiRule, ...]:
    """Drop rules that choose the same as the one before them.

    Examples:
        >>> rules = [OmpiRule(first_bytes=0, id=3), OmpiRule(first_bytes=33, id=3), OmpiRule(first_bytes=65, id=4)]
        >>> [(rule.first_bytes, rule.id) for rule in merged(rules)]
        [(0, 3), (65, 4)]
    """
    found: list[OmpiRule] = []
    for rule in rules:
        if not found or replace(rule, first_bytes=found[-1].first_bytes) != found[-1]:
            found.append(rule)
    return tuple(found)


def rules_file(
    # Rules of each collective by the number of ranks, the first one of each from 0 bytes
    rules: Mapping[Collective, Mapping[int, Sequence[OmpiRule]]],
    *,
    version: tuple[int, ...] = (5, 0),  # Version of Open MPI that is to read it: JSON from 6.0 on
    comments: Sequence[str] = (),  # Lines for the head of the classic form; JSON has no comments
) -> str:
    r"""Encode a rules file; other communicator sizes are left to Open MPI.

    Examples:
        >>> rules = {4: [OmpiRule(first_bytes=0, id=6)], 5: [OmpiRule(first_bytes=0, id=3)]}
        >>> text = rules_file({Collective.BROADCAST: rules})
        >>> " ".join(line.partition(" #")[0] for line in text.splitlines())
        '1 7 4 0 1 0 0 0 0 4 1 0 6 0 0 5 1 0 3 0 0 6 1 0 0 0 0'
    """
    for collective, lists in rules.items():
        if collective not in FUNCTIONS:
            raise InputError(
                f"expected rules of collectives out of {', '.join(FUNCTIONS)}, found {collective}."
            )
        if not lists or min(lists) < 1:
            raise InputError(
                f"expected rules of {collective} for 1 rank or more, found numbers of ranks {sorted(lists)[:8]}."
            )
        for ranks, listed in lists.items():
            starts = [rule.first_bytes for rule in listed]
            if not starts or starts[0] != 0 or starts != sorted(set(starts)):
                raise InputError(
                    f"expected rules of {collective} on {ranks} ranks from 0 bytes upwards, "
                    f"found sizes {starts[:8]}."
                )
    return _json(rules) if form_of(version) == "json" else _classic(rules, comments)


def _classic(rules: Mapping[Collective, Mapping[int, Sequence[OmpiRule]]], comments: Sequence[str]) -> str:
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    lines.append(f"{len(rules)} # collectives")
    for collective in sorted(rules, key=lambda each: COLLECTIVES.index(FUNCTIONS[each])):
        name = FUNCTIONS[collective]
        blocks = list(_fenced(rules[collective]))
        lines += [f"{COLLECTIVES.index(name)} # {name}", f"{len(blocks)} # numbers of ranks"]
        for block in blocks:
            lines += block
    return "".join(f"{line}\n" for line in lines)


def _fenced(lists: Mapping[int, Sequence[OmpiRule]]) -> Iterator[list[str]]:
    """Lines of each list, and of those around them that end what they hold for."""
    yield _own_choice(0)
    for ranks, listed in sorted(lists.items()):
        head = [f"{ranks} # ranks", f"{len(listed)} # rules: bytes, algorithm, fan-out, segment bytes"]
        yield [
            *head,
            *(f"{rule.first_bytes} {rule.id} {rule.fanout} {rule.segment_bytes}" for rule in listed),
        ]
        if ranks + 1 not in lists:
            yield _own_choice(ranks + 1)


def _own_choice(ranks: int) -> list[str]:
    return [f"{ranks} # ranks and more", "1 # rule: as Open MPI decides", "0 0 0 0"]


def _json(rules: Mapping[Collective, Mapping[int, Sequence[OmpiRule]]]) -> str:
    collectives = {
        FUNCTIONS[collective]: [
            {"comm_size_min": ranks, "comm_size_max": ranks, "rules": _json_rules(listed)}
            for ranks, listed in sorted(lists.items())
        ]
        for collective, lists in rules.items()
    }
    document = {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
    return json.dumps(document, indent=2) + "\n"


def _json_rules(listed: Sequence[OmpiRule]) -> list[dict[str, int | str]]:
    ends: list[int | str] = [rule.first_bytes - 1 for rule in listed[1:]]
    return [
        {
            "msg_size_min": rule.first_bytes,
            "msg_size_max": end,
            "alg": rule.id,
            "faninout": rule.fanout,
            "seg_size": rule.segment_bytes,
            "reqs": 0,
        }
        for rule, end in zip(listed, [*ends, "inf"], strict=True)
    ]


def export_ompi_rules(
    topology: Topology,  # Where it runs, one process on each GPU, ranks as numbered
    options: OmpiRulesOptions,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Export rules for communicators of all ranks, from simulated times of Open MPI's algorithms."""
    reader, sizes = version_of(options.version, options.form), options.sizes
    collectives = COMPARED if options.collectives is None else options.collectives
    words = ".".join(map(str, reader))
    chosen = []
    for collective in dict.fromkeys(map(Collective.named, collectives)):
        if collective not in FUNCTIONS:
            raise InputError(f"expected collectives out of {', '.join(FUNCTIONS)}, found {collective}.")
        chosen.append(collective)
    if topology.num_ranks < 2 or not chosen or not sizes:
        raise InputError(
            "expected 2 ranks, a collective and a size at least: there is nothing to choose otherwise."
        )
    compared_by = {
        each: compared(
            topology,
            each,
            sizes,
            model=options.model,
            jobs=options.jobs,
            on_progress=_told(each, on_stage),
        )
        for each in chosen
    }
    assumed = next(iter(compared_by.values())).model
    found = {collective: choices_of(comparison, reader) for collective, comparison in compared_by.items()}
    rules = {collective: {topology.num_ranks: rules_of(choices)} for collective, choices in found.items()}
    notes = [_words(collective, choices) for collective, choices in found.items()]
    return Exported(
        text=rules_file(
            rules,
            version=reader,
            comments=[
                f"coppice {__version__}, simulated on {topology.name} {topology.sha256[:16]}, for Open MPI {words}",
                f"model {assumed.text}",
            ],
        ),
        notes=(
            *notes,
            f"for Open MPI {words}: other versions number and read otherwise, `version=` names another one",
            f"times are simulated (model {assumed.text}): measure before you rely on them",
            USE,
        ),
        suffix=SUFFIXES[form_of(reader)],
        read_as="ompi-rules",
        known={"version": words, "shapes": known_shape(topology)},
    )


USE = (
    "mpirun --mca coll ^han --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE"
)
"""How a file is used."""

SUFFIXES = {"classic": ".conf", "json": ".json"}
"""Usual ends of names of rules files, by form."""


def _told(collective: Collective, on_stage: Callable[[str], None]) -> Callable[[int, int, str], None]:
    """What tells how far a comparison is."""
    return lambda done, total, name: on_stage(f"comparing {collective}: {done} of {total} ({name})")


def known_shape(topology: Topology) -> str:
    """Hosts that have ranks, and ranks, as the doctor takes them."""
    hosts = max(1, len(set(topology.host[topology.rank_nodes].tolist())))
    return f"{hosts}x{topology.num_ranks}"


def rules_of(choices: Sequence[OmpiChoice]) -> tuple[OmpiRule, ...]:
    """Rules from choices at ascending sizes: equal neighbours merge, ranges meet at the geometric mean.

    Examples:
        >>> choices = [OmpiChoice(size_bytes=size, id=id) for size, id in ((4, 3), (16, 3), (64, 4))]
        >>> [(rule.first_bytes, rule.id) for rule in rules_of(choices)]
        [(0, 3), (33, 4)]
    """
    firsts = [isqrt(one.size_bytes * two.size_bytes) + 1 for one, two in pairwise(choices)]
    return merged(
        OmpiRule(first_bytes=first, id=choice.id, fanout=choice.fanout, segment_bytes=choice.segment_bytes)
        for first, choice in zip([0, *firsts], choices, strict=False)
    )


def _words(collective: Collective, choices: Sequence[OmpiChoice]) -> str:
    gains = [choice.default_us / choice.time_us for choice in choices if choice.id and choice.default_us]
    changed = sum(1 for choice in choices if choice.id)
    words = f"{collective}: another algorithm than Open MPI's own at {changed} of {len(choices)} sizes"
    return words + (f", up to {max(gains):.3g} times as fast" if gains else "")
