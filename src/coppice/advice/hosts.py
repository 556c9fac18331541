"""What is found of the hosts of a cluster, and what the library would reckon with once it is mended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from coppice.advice.changes import Change
from coppice.advice.environment import with_gpudirect
from coppice.doctor.framework import Diagnosis, run
from coppice.doctor.host import HOST_RULES, HostFile
from coppice.doctor.job_facts import JobFacts
from coppice.selection.nccl.boxes import Box, each_box
from coppice.topology.model import Link, Topology
from coppice.topology.slots import Slot


def host_diagnoses(topology: Topology, files: Mapping[str, bytes]) -> tuple[Diagnosis, ...]:
    """Judge the wiring of a cluster, and what files report of its hosts.

    Args:
        files: Logs of runs and outputs of `lspci -vv`, by their names.
    """
    subjects = [HostFile(data=b"", file=topology.name, given=topology)]
    facts = JobFacts(topology=topology)
    subjects += [HostFile(data=data, file=name, facts=facts) for name, data in files.items()]
    # Wiring is judged once, not again beside every log.
    kept = [each for each in subjects if each.given is not None or each.is_log or each.is_lspci]
    found = [run(each, HOST_RULES, target="host", heading="as host") for each in kept]
    return tuple(
        one if at == 0 else replace(one, findings=tuple(f for f in one.findings if f.rule not in WIRED))
        for at, one in enumerate(found)
    )


WIRED = tuple(f"H{number:02}" for number in range(1, 10))
"""Rules about the wiring."""


def host_changes(diagnoses: Sequence[Diagnosis]) -> list[Change]:
    """A change for each fault of the wiring that can be mended."""
    broken = {finding.rule: finding for one in diagnoses for finding in one.findings}
    return [
        Change(
            name=f"mend {rule}",
            what=f"{rule}: {broken[rule].fix}",
            undo="none needed: the host is then as others of its kind",
            mend=mend,
        )
        for rule, mend in _MENDS.items()
        if rule in broken
    ]


def with_equal_nvlinks(topology: Topology) -> Topology:
    """The cluster with the NVLinks of the GPU that has most at all GPUs of a host, where NVSwitches join them."""
    rates = _rates(topology)
    for _, box in each_box(topology):
        ends = [(gpu, each) for gpu in box.gpus for each in box.gpu_switches]
        links = box.gpu_links
        most = max((links.get(pair, Fraction(0)) for pair in ends), default=Fraction(0))
        for gpu, each in ends:
            for a, b in ((gpu, each), (each, gpu)):
                rates[box.nodes[a], box.nodes[b]] = most
    return _with_rates(topology, rates)


def with_equal_pcie(topology: Topology) -> Topology:
    """The cluster with the widest and fastest PCIe link among GPUs, and among NICs of one kind, at all of them."""
    rates = _rates(topology)
    slots = list(topology.slot)
    for _, box in each_box(topology):
        for places in _alike(box):
            links = [(a, b) for a, b in box.links if {a, b} & set(places) and {a, b} & box.bridges]
            most = max((box.links[pair] for pair in links), default=Fraction(0))
            for a, b in links:
                rates[box.nodes[a], box.nodes[b]] = most
            if slots:
                _widen(slots, box, places)
    return replace(_with_rates(topology, rates), slot=tuple(slots))


def _alike(box: Box) -> list[list[int]]:
    """Places of GPUs, and of NICs with ports of one rate."""
    ports: dict[object, list[int]] = {}
    for place in range(len(box.nodes)):
        text = box.slot(place)
        if place in box.ranks:
            ports.setdefault("gpu", []).append(place)
        elif text is not None:
            ports.setdefault(Slot.of(text).steps[-1].gb_per_s, []).append(place)
    return list(ports.values())


def _widen(slots: list[str | None], box: Box, places: Sequence[int]) -> None:
    """Give the PCIe step of all slots the rate of the fastest."""
    read = {place: Slot.of(text).steps for place in places if (text := box.slot(place)) is not None}
    at = {place: len(steps) - (1 if place in box.ranks else 2) for place, steps in read.items()}
    most = max((read[place][at[place]].gb_per_s for place in read if at[place] >= 0), default=Fraction(0))
    for place, steps in read.items():
        if at[place] >= 0:
            step = replace(steps[at[place]], gb_per_s=most)
            made = (*steps[: at[place]], step, *steps[at[place] + 1 :])
            slots[box.nodes[place]] = Slot(made).text


def _rates(topology: Topology) -> dict[tuple[int, int], Fraction]:
    return {pair: topology.gb_per_s(e) for pair, e in topology.link_index.items()}


def _with_rates(topology: Topology, rates: Mapping[tuple[int, int], Fraction]) -> Topology:
    known, latency = topology.link_index, topology.latency_us.tolist()
    usual = max(latency, default=0.0)
    links = [
        Link(
            src=topology.node_ids[a],
            dst=topology.node_ids[b],
            gb_per_s=rate,
            latency_us=latency[known[a, b]] if (a, b) in known else usual,
            duplex=False,
        )
        for (a, b), rate in sorted(rates.items())
        if rate
    ]
    return Topology.of(topology.name, topology.nodes(), links, source=topology.source)


def _with_gpudirect(topology: Topology) -> Topology:
    return with_gpudirect(topology, on=True)


_MENDS: Mapping[str, Callable[[Topology], Topology]] = {
    "H03": with_equal_pcie,
    "H07": _with_gpudirect,
    "H08": with_equal_nvlinks,
}
"""What mends a fault, by its rule."""


def is_lspci(data: bytes) -> bool:
    """Whether a file is the output of `lspci -vv`."""
    return HostFile(data=data, file="").is_lspci
