"""Files of what puts, signals, waits and launches cost, as `coppice probe --costs` measures them.

What a file does not name was not measured and stays what :class:`~coppice.simulation.put_signal.PutSignalCosts`
assumes: between ranks of one host nobody learns what a network costs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.files import file_name, read_bytes
from coppice.simulation.put_signal import PutSignalCosts

_FORMAT = "coppice-put-signal-costs"


class _CostFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a file holds."""

    format: str
    version: int
    measured: str
    costs: dict[str, float]


def encode_put_signal_costs(costs: Mapping[str, float], *, measured: str) -> str:
    """The text of a file.

    Args:
        costs: Fields of ``PutSignalCosts`` that were measured.

    Examples:
        >>> "wait_us" in encode_put_signal_costs({"wait_us": 1.5}, measured="2 ranks on the twin")
        True
    """
    _costs_of(costs, file="the costs")
    found = _CostFile(format=_FORMAT, version=1, measured=measured, costs=dict(costs))
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def read_put_signal_costs(path: str | os.PathLike[str]) -> PutSignalCosts:
    """The costs in a file, with assumptions for what it does not name."""
    data, name = read_bytes(path, hint="give a file of `coppice probe --costs`"), file_name(path)
    try:
        found = msgspec.json.decode(data, type=decodable(_CostFile))
    except JSON_FAULTS as error:
        fault = json_fault(error, data)
        raise InputError(
            f"{name} holds no costs of puts and signals ({fault}): `coppice probe --costs` writes them."
        ) from None
    if (found.format, found.version) != (_FORMAT, 1):
        raise InputError(
            f"expected {_FORMAT} of version 1 in {name}, found {found.format} of version {found.version}."
        )
    return _costs_of(found.costs, file=name)


def _costs_of(costs: Mapping[str, float], *, file: str) -> PutSignalCosts:
    known = {field.name for field in fields(PutSignalCosts) if field.type == "float"}
    unknown = sorted(set(costs) - known)
    if unknown:
        raise InputError(
            f"expected costs out of {', '.join(sorted(known))} in {file}, found {unknown[0]}: remove it."
        )
    given: dict[str, Any] = dict(costs)
    return PutSignalCosts(**given)
