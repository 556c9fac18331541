"""Rules that select a put/signal algorithm, or the library's own, by collective and size.

`coppice tune export TABLE --to put-signal-rules` writes them; ``COPPICE_TUNING`` names the file for the torch backend.
A size between two measured ones belongs to the rule that `coppice tune fit` gave it: the ranges of two rules meet at
the geometric mean of the sizes where they were measured. What no rule names is left to the library: sizes further out
than half a step, other collectives, other numbers of ranks or nodes.
"""

from __future__ import annotations

import hashlib
import os
from itertools import pairwise

import msgspec

from coppice.collectives import Collective
from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.files import file_name, read_bytes

TUNING_VARIABLE = "COPPICE_TUNING"
"""Environment variable that names the file."""

_FORMAT = "coppice-put-signal-rules"


class AlgorithmRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Algorithm for a range of sizes."""

    collective: Collective  # The collective
    nodes: int  # Hosts that the group spans
    ranks: int  # Its ranks
    first_bytes: int  # Least M, included
    last_bytes: int  # Largest M, included
    algorithm: str  # `forest` or a name of the catalogue


class AlgorithmRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of a file."""

    format: str = _FORMAT  # Always the same
    version: int = 1  # 1
    notes: tuple[str, ...] = ()  # Where it comes from, in words
    # The rules; ranges of one collective, number of nodes and of ranks do not overlap
    rules: tuple[AlgorithmRule, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the rules, independent of formatting."""
        return hashlib.sha256(msgspec.json.encode(self.rules)).hexdigest()

    def choice(self, collective: Collective, *, nodes: int, ranks: int, size_bytes: int) -> str | None:
        """Algorithm of a call, None for the library's own.

        Examples:
            >>> rule = AlgorithmRule(
            ...     collective="all_reduce", nodes=1, ranks=4, first_bytes=100, last_bytes=200, algorithm="ring"
            ... )
            >>> rules = AlgorithmRules(rules=(rule,))
            >>> [rules.choice(Collective.ALL_REDUCE, nodes=1, ranks=4, size_bytes=size) for size in (99, 100, 201)]
            [None, 'ring', None]
        """
        return next(
            (
                rule.algorithm
                for rule in self.rules
                if (rule.collective, rule.nodes, rule.ranks) == (collective, nodes, ranks)
                and rule.first_bytes <= size_bytes <= rule.last_bytes
            ),
            None,
        )


def encode_rules(rules: AlgorithmRules) -> str:
    """Encode rules."""
    return msgspec.json.format(msgspec.json.encode(rules), indent=2).decode() + "\n"


def read_rules(path: str | os.PathLike[str]) -> AlgorithmRules:
    """Read rules from a file."""
    data = read_bytes(path, hint="give a file of `coppice tune export --to put-signal-rules`")
    return decode_rules(data, file=file_name(path))


def decode_rules(data: bytes, *, file: str) -> AlgorithmRules:
    """Decode rules."""
    words = f"{file} holds no rules for puts and signals"
    found = decode_json(
        data, AlgorithmRules, lambda fault: f"{words} ({fault}): `coppice tune export` writes them."
    )
    if (found.format, found.version) != (_FORMAT, 1):
        raise InputError(
            f"expected {_FORMAT} of version 1 in {file}, found {found.format} of version {found.version}."
        )
    ordered = sorted(
        found.rules, key=lambda rule: (rule.collective, rule.nodes, rule.ranks, rule.first_bytes)
    )
    for rule in ordered:
        if not 0 <= rule.first_bytes <= rule.last_bytes or not rule.algorithm:
            raise InputError(
                f"expected sizes from a first to a last and an algorithm in {file}, found {rule}."
            )
    for before, after in pairwise(ordered):
        alike = (before.collective, before.nodes, before.ranks) == (
            after.collective,
            after.nodes,
            after.ranks,
        )
        if alike and after.first_bytes <= before.last_bytes:
            raise InputError(
                f"expected ranges that do not overlap in {file}, found {before} and {after}: keep one of them."
            )
    return found
