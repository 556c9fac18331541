"""Doctor rules about topology files (``NCCL_TOPO_FILE``): what the library takes for something else, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from coppice.doctor.framework import ERROR, WARNING, Complaint, Need, Rulebook
from coppice.doctor.given import DUMP, TuningFile
from coppice.errors import InputError
from coppice.export.nccl.topo_xml import MOST_NODES
from coppice.topology.readers.gpu_links import bus_id
from coppice.topology.readers.link_rates import pcie_speed_known
from coppice.topology.readers.xml_tree import Element, parse_xml

__all__ = ["RULES", "NcclTopoFile"]

_LINKS = ("nvlink", "xgmi")
_NICS = Need(
    "names of the NICs, or a dump", lambda file: file.given.dump is not None or bool(file.given.nics)
)
_DETECTED = {
    "system": ("name",),
    "cpu": ("host_hash",),
    "gpu": ("rank", "mlopart"),
    "net": ("dev", "net", "keep"),
    "pci": ("class",),
}
"""Attributes that the library detects, whatever the file says."""


class NcclTopoFile(TuningFile):
    """A topology file (``NCCL_TOPO_FILE``)."""

    @cached_property
    def root(self) -> Element:
        """Its outermost element."""
        return _system(self.data, self.file)


RULES = Rulebook[NcclTopoFile]()
"""Rules about topology files."""


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


@RULES.rule("P01", WARNING, "whole texts of PCIe speeds", "others count as PCIe 3")
def _speeds(file: NcclTopoFile) -> Iterator[Complaint]:
    for element in _all(file.root):
        text = element.attributes.get("link_speed")
        if element.tag == "pci" and text is not None and not pcie_speed_known(text):
            whole = (
                f"{text} PCIe"
                if pcie_speed_known(f"{text} PCIe")
                else "what the slot has, such as 32.0 GT/s PCIe"
            )
            words = f"the PCIe speed {text[:40]!r} is not known and taken for 8 GT/s"
            yield element.line, words, f"write {whole}"


def _names(element: Element) -> dict[str, Element]:
    return {each.attributes.get("name", ""): each for each in _all(element) if each.tag == "net"}


@RULES.rule("P02", ERROR, "NICs by the names of the plug-in", "others are dropped", needs=_NICS)
def _nics(file: NcclTopoFile) -> Iterator[Complaint]:
    dump = file.given.dump
    known = set(file.given.nics)
    if dump is not None:
        known |= set(_names(_system(dump, "the dump")))
    for name, element in _names(file.root).items():
        if name not in known:
            listed = ", ".join(sorted(known)[:8])
            text = f"no NIC of the plug-in is called {name[:40]!r}: the element does nothing"
            yield element.line, text, f"use its names ({listed})"


@RULES.rule("P03", WARNING, "all links of a GPU or none", "one entry switches detection off for its GPU")
def _links(file: NcclTopoFile) -> Iterator[Complaint]:
    gpus = [each for each in _all(file.root) if each.tag == "gpu"]
    counts: dict[int, int] = {}
    for at, gpu in enumerate(gpus):
        links = [child for child in gpu.children if child.tag in _LINKS]
        counts[at] = sum(child.integer("count", low=0, high=1024, default=1) for child in links)
    most = max(counts.values(), default=0)
    for at, gpu in enumerate(gpus):
        if 0 < counts[at] < most:
            text = f"the GPU has {counts[at]} links, another has {most}; those that the file lacks are not detected"
            yield gpu.line, text, "list all links of a GPU, or none"
        elif most and not counts[at]:
            text = f"the GPU has no links, another has {most}: its own are detected, and must fit those of the others"
            yield gpu.line, text, "list the links of all GPUs, or of none"


@RULES.rule("P04", ERROR, "elements that fit, of one host", "init fails")
def _size(file: NcclTopoFile) -> Iterator[Complaint]:
    root = file.root
    most = MOST_NODES.get(root.attributes.get("version", "1"), MOST_NODES["1"])
    hosts = {cpu.attributes.get("host_hash", "") for cpu in root.named("cpu")}
    if len(hosts) > 1:
        yield root.line, f"the file describes {len(hosts)} hosts", "keep the CPUs of one host"
    count = len(_all(root))
    if count > most:
        text = f"the file has {count} elements, the library reads {most}"
        yield root.line, text, "leave out unused devices"


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


@RULES.rule("P05", WARNING, "what the library made of it", "it detects some things itself", needs=DUMP)
def _differences(file: NcclTopoFile) -> Iterator[Complaint]:
    dump = _indexed(_system(file.given.dump or b"", "the dump"))
    for key, element in sorted(_indexed(file.root).items(), key=lambda entry: entry[1].line):
        name = f"<{element.tag[:40]}>{f' {key[-1][1][:40]}' if len(key[-1]) > 1 else ''}"
        seen = dump.get(key)
        if seen is None:
            text = f"{name} is not in the dump: the library did not find it, or no GPU or NIC of the job is below it"
            yield element.line, text, "check its bus id or name on the machine"
            continue
        for attribute, value in element.attributes.items():
            real = seen.attributes.get(attribute)
            if attribute in _DETECTED.get(element.tag, ()) or real == value:
                continue
            if attribute == "busid" and real is not None and bus_id(real) == bus_id(value):
                continue
            text = f"{attribute[:40]} of {name} is {value[:40]!r} here and {str(real)[:40]!r} in the dump"
            yield (element.line, text, "the file was not read, or the dump is older or of another machine")
