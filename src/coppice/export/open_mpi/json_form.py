"""Rules files of Open MPI in the form of JSON, which version 6.0 reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coppice.errors import InputError
from coppice.export.open_mpi.rules_file import (
    FOR_EVER,
    Broken,
    GivesUpError,
    RankList,
    RuleLine,
    RulesFile,
    Section,
)
from coppice.selection.open_mpi_names import ALGORITHMS, COLLECTIVES

__all__ = ["read_ompi_json"]


def read_ompi_json(text: str, *, file: str) -> RulesFile:
    """Read a rules file that is JSON.

    Args:
        text: Its content.
        file: Its name, for messages.

    Raises:
        InputError: If it cannot be read as JSON.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = (
            f"{file} begins as JSON and cannot be read as such ({error}): mend it, or write the classic form."
        )
        raise InputError(msg) from None
    found = RulesFile(form="json")
    try:
        collectives = document.get("collectives")
        if not isinstance(collectives, dict):
            raise GivesUpError(Broken(0, "there is no object 'collectives'", "add it"))
        for name, lists in collectives.items():
            if name not in COLLECTIVES:
                fix = f"write one of {', '.join(ALGORITHMS)}"
                raise GivesUpError(Broken(0, f"there is no collective {name!r}", fix))
            if not isinstance(lists, list):
                raise GivesUpError(
                    Broken(0, f"{name} is no list", "write a list of rules for numbers of ranks")
                )
            read = tuple(_json_list(name, at, each) for at, each in enumerate(lists, start=1))
            found.sections.append(Section(line=0, name=name, lists=read))
    except GivesUpError as stop:
        found.broken = stop.broken
    return found


def _json_list(name: str, at: int, each: Any) -> RankList:
    place = f"list {at} of {name}"
    if not isinstance(each, dict) or not isinstance(each.get("rules"), list):
        raise GivesUpError(Broken(0, f"{place} has no rules", "give each list the member 'rules'"))
    return RankList(
        line=0,
        place=place,
        ranks=_whole(each, "comm_size_min", 0, place),
        last_ranks=_whole(each, "comm_size_max", 2**31 - 1, place),
        rules=tuple(
            _json_rule(f"rule {index} of {place}", rule) for index, rule in enumerate(each["rules"], start=1)
        ),
        narrowed="comm_rank_distribution" in each,
    )


def _json_rule(place: str, rule: Any) -> RuleLine:
    if not isinstance(rule, dict):
        raise GivesUpError(Broken(0, f"{place} is no object", "write an object with the member 'alg'"))
    algorithm = rule.get("alg")
    return RuleLine(
        line=0,
        place=place,
        first_bytes=_whole(rule, "msg_size_min", 0, place),
        last_bytes=_whole(rule, "msg_size_max", FOR_EVER, place),
        algorithm=algorithm if isinstance(algorithm, int) else str(algorithm),
        fanout=_whole(rule, "faninout", 0, place),
        segment_bytes=_whole(rule, "seg_size", 0, place),
    )


def _whole(record: Mapping[str, Any], key: str, default: int, place: str) -> int:
    value = record.get(key, default)
    if isinstance(value, str) and value[:3] in ("inf", "Inf", "INF"):
        return FOR_EVER
    if isinstance(value, bool) or not isinstance(value, int):
        text = f"the {key!r} of {place} is neither a whole number nor 'inf'"
        raise GivesUpError(Broken(0, text, "write a whole number"))
    return value
