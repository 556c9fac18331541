"""Rules files by which the component coll/tuned of Open MPI picks an algorithm, by ranks and size.

    classic    numbers in a fixed order, read by all versions
    json       Open MPI 6.0 and later

A rule of the classic form holds from its size to the next one, and a list of rules from its number of ranks to the next
one; the first list holds for all smaller numbers, too. Rules for P ranks therefore stand between lists that leave the
choice to Open MPI (number 0): one for 0 ranks, and one for P + 1 ranks where these have no rules of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.open_mpi_names import COLLECTIVES, FUNCTIONS

__all__ = ["FORMS", "OmpiRule", "merged", "rules_file"]

FORMS = ("classic", "json")


@dataclass(frozen=True, kw_only=True)
class OmpiRule:
    """From one size to the next rule's: which algorithm.

    Attributes:
        first_bytes: Least M.
        id: Number of the algorithm, 0 leaves the choice to Open MPI.
        fanout: Number of chains, 0 where it has none.
        segment_bytes: Size of a segment, 0 for whole messages.
    """

    first_bytes: int
    id: int
    fanout: int = 0
    segment_bytes: int = 0


def merged(rules: Iterable[OmpiRule]) -> tuple[OmpiRule, ...]:
    """Rules at ascending sizes without those that choose what the one before them does.

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
    rules: Mapping[Collective, Mapping[int, Sequence[OmpiRule]]],
    *,
    form: str = "classic",
    comments: Sequence[str] = (),
) -> str:
    r"""The text of a rules file; communicators of other numbers of ranks are left to Open MPI.

    Args:
        rules: Rules of each collective by the number of ranks, the first one of each from 0 bytes.
        form: One of :data:`FORMS`.
        comments: Lines for the head of the classic form; JSON has no comments.

    Raises:
        InputError: If the form is unknown, Open MPI has no rules for a collective, a collective has no number of ranks
            or one below 1, or rules do not begin at 0 bytes and ascend.

    Examples:
        >>> rules = {4: [OmpiRule(first_bytes=0, id=6)], 5: [OmpiRule(first_bytes=0, id=3)]}
        >>> text = rules_file({Collective.BROADCAST: rules})
        >>> " ".join(line.partition(" #")[0] for line in text.splitlines())
        '1 7 4 0 1 0 0 0 0 4 1 0 6 0 0 5 1 0 3 0 0 6 1 0 0 0 0'
    """
    if form not in FORMS:
        msg = f"expected a form that is one of {', '.join(FORMS)}, found {form!r}."
        raise InputError(msg)
    for collective, lists in rules.items():
        if collective not in FUNCTIONS:
            msg = f"expected rules of collectives out of {', '.join(FUNCTIONS)}, found {collective}."
            raise InputError(msg)
        if not lists or min(lists) < 1:
            msg = f"expected rules of {collective} for 1 rank or more, found numbers of ranks {sorted(lists)[:8]}."
            raise InputError(msg)
        for ranks, listed in lists.items():
            starts = [rule.first_bytes for rule in listed]
            if not starts or starts[0] != 0 or starts != sorted(set(starts)):
                msg = (
                    f"expected rules of {collective} on {ranks} ranks from 0 bytes upwards, "
                    f"found sizes {starts[:8]}."
                )
                raise InputError(msg)
    return _json(rules) if form == "json" else _classic(rules, comments)


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
