"""Doctor rules about topology files (``NCCL_TOPO_FILE``): what the library takes for something else, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.tuning import Case, Complaint, Given, TuningRule
from coppice.errors import InputError
from coppice.export.nccl.topo_xml import MOST_NODES
from coppice.topology.readers.gpu_links import bus_id
from coppice.topology.readers.link_rates import pcie_speed_known
from coppice.topology.readers.xml_tree import Element, parse_xml

__all__ = ["RULES"]

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_LINKS = ("nvlink", "xgmi")
_DETECTED = {
    "system": ("name",),
    "cpu": ("host_hash",),
    "gpu": ("rank", "mlopart"),
    "net": ("dev", "net", "keep"),
    "pci": ("class",),
}
"""Attributes that the library detects, whatever the file says."""


@lru_cache(maxsize=4)
def _root(case: Case) -> Element:
    return _system(case.data, case.file)


def _system(data: bytes, file: str) -> Element:
    root = parse_xml(data, file=file)
    if root.tag != "system":
        msg = f"expected <system> at {root.where}, found <{root.tag[:40]}>: give a topology file."
        raise InputError(msg)
    return root


def _all(element: Element) -> list[Element]:
    found = [element]
    for each in found:
        found.extend(each.children)
    return found


def _speeds(case: Case) -> Iterator[Complaint]:
    for element in _all(_root(case)):
        text = element.attributes.get("link_speed")
        if element.tag == "pci" and text is not None and not pcie_speed_known(text):
            whole = (
                f"{text} PCIe"
                if pcie_speed_known(f"{text} PCIe")
                else "what the slot has, such as 32.0 GT/s PCIe"
            )
            words = f"the PCIe speed {text[:40]!r} is not known and taken for 8 GT/s"
            yield WARNING, element.line, words, f"write {whole}"


def _names(element: Element) -> dict[str, Element]:
    return {each.attributes.get("name", ""): each for each in _all(element) if each.tag == "net"}


def _nics(case: Case) -> Iterator[Complaint]:
    dump = case.given.dump
    known = set(case.given.nics)
    if dump is not None:
        known |= set(_names(_system(dump, "the dump")))
    for name, element in _names(_root(case)).items():
        if name not in known:
            listed = ", ".join(sorted(known)[:8])
            text = f"no NIC of the plug-in is called {name[:40]!r}: the element does nothing"
            yield ERROR, element.line, text, f"use its names ({listed})"


def _links(case: Case) -> Iterator[Complaint]:
    gpus = [each for each in _all(_root(case)) if each.tag == "gpu"]
    counts: dict[int, int] = {}
    for at, gpu in enumerate(gpus):
        links = [child for child in gpu.children if child.tag in _LINKS]
        counts[at] = sum(child.integer("count", low=0, high=1024, default=1) for child in links)
    most = max(counts.values(), default=0)
    for at, gpu in enumerate(gpus):
        if 0 < counts[at] < most:
            text = f"the GPU has {counts[at]} links, another has {most}; those that the file lacks are not detected"
            yield WARNING, gpu.line, text, "list all links of a GPU, or none"
        elif most and not counts[at]:
            text = f"the GPU has no links, another has {most}: its own are detected, and must fit those of the others"
            yield WARNING, gpu.line, text, "list the links of all GPUs, or of none"


def _size(case: Case) -> Iterator[Complaint]:
    root = _root(case)
    most = MOST_NODES.get(root.attributes.get("version", "1"), MOST_NODES["1"])
    hosts = {cpu.attributes.get("host_hash", "") for cpu in root.named("cpu")}
    if len(hosts) > 1:
        yield ERROR, root.line, f"the file describes {len(hosts)} hosts", "keep the CPUs of one host"
    count = len(_all(root))
    if count > most:
        yield (
            ERROR,
            root.line,
            f"the file has {count} elements, the library reads {most}",
            "leave out unused devices",
        )


def _key(element: Element) -> tuple[str, ...]:
    """By what the library matches an element."""
    attributes = element.attributes
    if element.tag == "pci":
        return ("pci", bus_id(attributes.get("busid", "")))
    if element.tag in (*_LINKS, "pcilink"):
        return (element.tag, bus_id(attributes.get("target", "")))
    name = {"net": "name", "cpu": "numaid"}.get(element.tag)
    return (element.tag, attributes.get(name, "")) if name else (element.tag,)


def _indexed(root: Element) -> dict[tuple[tuple[str, ...], ...], Element]:
    """Elements by what they are matched by; a link also by its GPU."""
    found: dict[tuple[tuple[str, ...], ...], Element] = {}
    stack: list[tuple[tuple[tuple[str, ...], ...], Element]] = [((), root)]
    while stack:
        above, element = stack.pop()
        own = _key(element)
        anchored = own[0] in ("pci", "net", "cpu", "system")
        key = (own,) if anchored else (*above, own)
        found[key] = element
        stack += [(key, child) for child in element.children]
    return found


def _differences(case: Case) -> Iterator[Complaint]:
    dump = _indexed(_system(case.given.dump or b"", "the dump"))
    for key, element in sorted(_indexed(_root(case)).items(), key=lambda entry: entry[1].line):
        name = f"<{element.tag[:40]}>{f' {key[-1][1][:40]}' if len(key[-1]) > 1 else ''}"
        seen = dump.get(key)
        if seen is None:
            text = f"{name} is not in the dump: the library did not find it, or no GPU or NIC of the job is below it"
            yield WARNING, element.line, text, "check its bus id or name on the machine"
            continue
        for attribute, value in element.attributes.items():
            real = seen.attributes.get(attribute)
            if attribute in _DETECTED.get(element.tag, ()) or real == value:
                continue
            if attribute == "busid" and real is not None and bus_id(real) == bus_id(value):
                continue
            text = f"{attribute[:40]} of {name} is {value[:40]!r} here and {str(real)[:40]!r} in the dump"
            yield (
                WARNING,
                element.line,
                text,
                "the file was not read, or the dump is older or of another machine",
            )


def _has_dump(given: Given) -> bool:
    return given.dump is not None


RULES = (
    TuningRule("P01", "whole texts of PCIe speeds", "others count as PCIe 3", _speeds),
    TuningRule(
        "P02",
        "NICs by the names of the plug-in",
        "others are dropped",
        _nics,
        lambda given: given.dump is not None or bool(given.nics),
        "names of the NICs, or a dump",
    ),
    TuningRule("P03", "all links of a GPU or none", "one entry switches detection off for its GPU", _links),
    TuningRule("P04", "elements that fit, of one host", "init fails", _size),
    TuningRule(
        "P05",
        "what the library made of it",
        "it detects some things itself",
        _differences,
        _has_dump,
        "a dump",
    ),
)
