"""Files of probes: the design with the rates that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.decoding import decode_json
from coppice.diagnosis.design import ProbeDesign, design_of
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.topology.load import load


class _Probe(msgspec.Struct):
    """A flow, with its rates."""

    round_number: int
    rank_pair: tuple[int, int]
    measured_gb_per_s: float | list[float] | None = None


class _Results(msgspec.Struct):
    """A design of probes; other keys are not read."""

    topology_document: dict[str, Any]
    round_names: list[str]
    probes: list[_Probe]


def read_results(path: str | Path) -> tuple[ProbeDesign, list[NDArray[np.float64]]]:
    """Read probes and the rates that were measured: of several of a flow their median.

    Raises:
        InputError: If it is no such file, or a flow is none between two ranks of its network.
    """
    where = str(path)
    found = decode_json(
        read_bytes(path),
        _Results,
        lambda fault: (
            f"expected probes with rates in {where}, found something else ({fault}): make them with "
            "`coppice diagnose design`."
        ),
    )
    topology = load(msgspec.json.encode(found.topology_document))
    by_round: list[list[_Probe]] = [[] for _ in found.round_names]
    for number, probe in enumerate(found.probes):
        ranks = probe.rank_pair
        known = all(0 <= rank < topology.num_ranks for rank in ranks)
        if not known or not 0 <= probe.round_number < len(by_round):
            raise InputError(
                f"expected `$.probes[{number}]` in a round of {len(by_round)} between ranks 0 .. "
                f"{topology.num_ranks - 1}, found round {probe.round_number} and ranks {ranks[0]}, {ranks[1]}."
            )
        if ranks[0] == ranks[1]:
            raise InputError(f"expected two ranks in `$.probes[{number}]`, found {ranks[0]} twice.")
        by_round[probe.round_number].append(probe)
    named = zip(found.round_names, by_round, strict=True)
    flows = [(name, [each.rank_pair for each in some]) for name, some in named if some]
    design = design_of(topology, flows)
    return design, [np.array([_rate(each) for each in some]) for some in by_round if some]


def _rate(probe: _Probe) -> float:
    """The median of the rates of a flow; NaN where it was not measured."""
    measured = probe.measured_gb_per_s
    if measured is None or measured == []:
        return float("nan")
    return float(np.median(measured))


def with_rates(record: Mapping[str, Any], measured: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    """The record of a design with the rates of its flows: a number each, the median where there are several."""
    rates = np.concatenate(measured)
    probes = []
    for probe, rate in zip(record["probes"], rates, strict=True):
        repeated = {"repeated_gb_per_s": rate.tolist()} if rate.ndim else {}
        probes.append({**probe, "measured_gb_per_s": float(np.median(rate)), **repeated})
    return {**record, "probes": probes}
