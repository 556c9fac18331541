"""Python model of Coppice's tuner plugin for NCCL and RCCL: how it applies a table."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.export.formats import Dialect
from coppice.export.nccl.tuner_reader import ANY, TunerLine, read_tuner_table
from coppice.fitting.nccl_tuner import ALGORITHMS, COLLECTIVES, MOST_CHANNELS, PROTOCOLS

TABLE_VARIABLE = "COPPICE_TUNER_TABLE"
"""Variable that names the table."""

_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3


def fingerprint(data: bytes) -> str:
    """Fingerprint of a table that the plugin prints at communicator creation: equal tables, equal prints.

    Examples:
        >>> fingerprint(b"")
        'cbf29ce484222325'
    """
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME % 2**64
    return f"{value:016x}"


_MOST_LINE = 255


@dataclass(frozen=True, kw_only=True)
class PluginTable:
    """Rules of a tuner table."""

    lines: tuple[TunerLine, ...]  # Lines with a rule, in order

    def decide(
        self,
        collective: str,  # In the spelling of tuner tables
        size_bytes: int,
        *,
        nodes: int,
        ranks: int,
        # Pairs of algorithm and protocol that the library offers for the call
        available: Container[tuple[str, str]],
    ) -> TunerLine | None:
        r"""Matching rule of a call, None where the library decides.

        Examples:
            >>> table = load_table(b"allreduce,0,1023,nvls,simple,-1,-1,8\nallreduce,0,4095,ring,ll,4,-1,-1\n")
            >>> table.decide("allreduce", 512, nodes=1, ranks=8, available=[("ring", "ll")]).channels
            4
            >>> table.decide("allreduce", 4096, nodes=1, ranks=8, available=[("ring", "ll")])
        """
        for line in self.lines:
            if (
                line.collective == collective
                and line.sizes[0] <= size_bytes <= line.sizes[1]
                and line.nodes[0] <= nodes <= line.nodes[1]
                and line.ranks[0] <= ranks <= line.ranks[1]
                and (line.algorithm, line.protocol) in available
            ):
                return line
        return None


def load_table(data: bytes, *, file: str = "table") -> PluginTable:
    r"""Read a table with the strictness of the plugin.

    Examples:
        >>> load_table(b"allreduce,0,1023,ring,ll,0,-1,8\n", file="t.csv")
        Traceback (most recent call last):
        coppice.errors.InputError: t.csv:1: channels of 1 to 127 or -1 are expected, found 0.
    """
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    table = read_tuner_table(text, Dialect.COPPICE)
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if len(raw.removesuffix(b"\r")) > _MOST_LINE:
            raise InputError(
                f"{file}:{number}: lines of up to {_MOST_LINE} bytes are expected, found a longer one."
            )
    for line in table.lines:
        reason = _refusal(line)
        if reason is not None:
            raise InputError(f"{file}:{line.number}: {reason}.")
    if not table.lines:
        raise InputError(f"{file} holds no rule: expected one at least.")
    return PluginTable(lines=table.lines)


def _refusal(line: TunerLine) -> str | None:
    """Why the plugin refuses a line, or None."""
    if line.problem is not None:
        return line.problem
    for word, known in (
        (line.collective, tuple(COLLECTIVES.values())),
        (line.algorithm, tuple(ALGORITHMS.values())),
        (line.protocol, PROTOCOLS),
    ):
        if word not in known:
            return f"one of {', '.join(known)} is expected, found {word[:40]!r}"
    if line.channels != -1 and not 1 <= line.channels <= MOST_CHANNELS:
        return f"channels of 1 to {MOST_CHANNELS} or -1 are expected, found {line.channels}"
    if line.pipe != ANY or line.buffers != ANY:
        return "numPipeOps and regBuff of -1 are expected: ranks may differ in them"
    for name, span in (("nodes", line.nodes), ("ranks", line.ranks)):
        if span != ANY and not 1 <= span[0] < 2**31:
            return f"{name} of 1 or more or -1 are expected, found {span[0]}"
    return None
