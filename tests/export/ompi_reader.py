"""A strict reader of Open MPI's rules files, and the rule that a call meets; nothing of the exporter is used."""

from __future__ import annotations

import json
from dataclasses import dataclass

NUMBERS = {
    0: "allgather",
    2: "allreduce",
    3: "alltoall",
    7: "bcast",
    11: "reduce",
    13: "reduce_scatter_block",
}


@dataclass(frozen=True)
class Rule:
    least: int
    most: int
    algorithm: int
    fanout: int
    segment: int


@dataclass(frozen=True)
class Ranks:
    least: int
    most: int
    rules: tuple[Rule, ...]


FOR_EVER = 2**63


def classic(text: str) -> dict[str, list[Ranks]]:
    numbers = iter([int(word) for line in text.splitlines() for word in line.partition("#")[0].split()])
    found: dict[str, list[Ranks]] = {}
    count, last_number = next(numbers), -1
    for _ in range(count):
        number = next(numbers)
        assert number > last_number
        last_number = number
        lists = []
        for _ in range(next(numbers)):
            ranks = next(numbers)
            rows = [
                (next(numbers), next(numbers), next(numbers), next(numbers)) for _ in range(next(numbers))
            ]
            assert rows[0][0] == 0
            starts = [row[0] for row in rows]
            assert starts == sorted(set(starts))
            ends = [start - 1 for start in starts[1:]]
            rules = [Rule(row[0], end, *row[1:]) for row, end in zip(rows, [*ends, FOR_EVER], strict=True)]
            lists.append((ranks, tuple(rules)))
        sizes = [ranks for ranks, _ in lists]
        assert sizes == sorted(set(sizes))
        last = [size - 1 for size in sizes[1:]]
        # a communicator that is smaller than all sizes of the file gets the first list
        found[NUMBERS[number]] = [
            Ranks(ranks, end, rules)
            for ranks, (_, rules), end in zip([0, *sizes[1:]], lists, [*last, FOR_EVER], strict=True)
        ]
    assert next(numbers, None) is None
    return found


def modern(text: str) -> dict[str, list[Ranks]]:
    document = json.loads(text)
    assert set(document) == {"rule_file_version", "module", "collectives"}
    assert (document["rule_file_version"], document["module"]) == (3, "tuned")
    found = {}
    for name, lists in document["collectives"].items():
        assert name in NUMBERS.values()
        found[name] = [
            Ranks(
                each["comm_size_min"],
                each["comm_size_max"],
                tuple(
                    Rule(
                        row["msg_size_min"],
                        FOR_EVER if row["msg_size_max"] == "inf" else row["msg_size_max"],
                        row["alg"],
                        row["faninout"],
                        row["seg_size"],
                    )
                    for row in each["rules"]
                ),
            )
            for each in lists
        ]
    return found


def picked(rules: dict[str, list[Ranks]], function: str, ranks: int, size: int) -> Rule | None:
    """The rule of a call; None and algorithm 0 are Open MPI's own decision."""
    for each in rules.get(function, []):
        if each.least <= ranks <= each.most:
            return next((rule for rule in each.rules if rule.least <= size <= rule.most), None)
    return None
