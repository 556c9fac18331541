"""Doctor rules for topology files (``NCCL_TOPO_FILE``): what the library misreads or ignores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Need, Rulebook
from coppice.doctor.job_facts import DUMP, TuningFile
from coppice.errors import InputError
from coppice.export.nccl.topo_xml import MOST_NODES
from coppice.text import plural
from coppice.topology.readers.gpu_links import bus_id
from coppice.topology.readers.link_rates import pcie_speed_known
from coppice.topology.readers.xml_tree import Element, parse_xml

_LINKS = ("nvlink", "xgmi")
_PRINTED = re.compile(r"(2\.5|5|8|16|32|64) GT/s|(2\.5|5\.0|8\.0|16\.0|32\.0|64\.0) GT/s PCIe")
"""What Linux prints of a link's speed: until 5.6, and since."""

_NEARLY = Fraction(3, 4)
_NICS = Need(
    "names of the NICs, or a dump", lambda file: file.facts.dump is not None or bool(file.facts.nics)
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
    """A topology file (``NCCL_TOPO_FILE``) under examination."""

    @cached_property
    def root(self) -> Element:
        """Root element."""
        return _system(self.data, self.file)


RULES = Rulebook[NcclTopoFile]()
"""Rules about topology files."""


def _system(data: bytes, file: str) -> Element:
    root = parse_xml(data, file=file)
    if root.tag != "system":
        raise InputError(f"expected <system> at {root.where}, found <{root.tag[:40]}>: give a topology file.")
    return root


def _all(element: Element) -> list[Element]:
    found = [element]
    for each in found:
        found.extend(each.children)
    return found


@RULES.rule("P01", WARNING, "whole texts of PCIe speeds", "others count as PCIe 3")
def _speeds(file: NcclTopoFile) -> Iterator[Complaint]:
    odd: dict[str, list[Element]] = {}
    for element in _all(file.root):
        text = element.attributes.get("link_speed")
        if element.tag != "pci" or not text:
            continue
        if not pcie_speed_known(text):
            whole = (
                f"{text} PCIe"
                if pcie_speed_known(f"{text} PCIe")
                else "what the slot has, such as 32.0 GT/s PCIe"
            )
            words = f"the PCIe speed {text[:40]!r} is not known and taken for 8 GT/s"
            yield element.line, words, f"write {whole}"
        elif not _PRINTED.fullmatch(text):
            odd.setdefault(text, []).append(element)
    for text, elements in odd.items():
        rate = re.match(r"[0-9.]+", text)
        words = (
            f"link_speed of {plural(len(elements), 'element')} is {text[:40]!r}, which Linux never prints: it is known "
            "by its beginning"
        )
        whole = f"{float(rate[0] if rate else 0):.1f} GT/s PCIe"
        yield NOTE, elements[0].line, words, f"write {whole}"


_WANTED: Mapping[str, tuple[str, ...]] = {
    "cpu": ("numaid", "arch"),
    "pci": ("busid", "class", "link_speed", "link_width"),
    "nvlink": ("target", "count"),
    "xgmi": ("target", "count"),
    "pcilink": ("target",),
    "c2c": ("count", "bw"),
    "net": ("name",),
}
"""Attributes without which init stops, unless the library finds them out itself."""

_DETECTABLE = ("class", "link_speed", "link_width")
"""Of those, what it reads from the system wherever the device is there."""

_VALUES: Mapping[tuple[str, str], tuple[str, ...]] = {("cpu", "arch"): ("x86_64", "arm64", "ppc64")}


def _wanted(element: Element) -> tuple[str, ...]:
    """Attributes that an element must have, as the library reads it."""
    wanted = _WANTED.get(element.tag, ())
    if element.tag == "cpu" and element.attributes.get("arch", "x86_64").startswith("x86_64"):
        wanted += ("vendor",)
        if element.attributes.get("vendor") in (None, "GenuineIntel", "CentaurHauls", "  Shanghai  "):
            wanted += ("familyid", "modelid")
    return wanted


@RULES.rule("P06", ERROR, "attributes that the reader needs", "init stops")
def _attributes(file: NcclTopoFile) -> Iterator[Complaint]:
    lacking: dict[tuple[str, tuple[str, ...]], list[Element]] = {}
    for element in _all(file.root):
        missing = tuple(name for name in _wanted(element) if name not in element.attributes)
        if missing:
            lacking.setdefault((element.tag, missing), []).append(element)
        for (tag, name), known in _VALUES.items():
            value = element.attributes.get(name)
            if element.tag == tag and value is not None and not value.startswith(known):
                text = f"{name} of <{tag}> is {value[:40]!r}, which the library does not know"
                yield WARNING, element.line, text, f"write one of {', '.join(known)}"
    for (tag, missing), elements in lacking.items():
        found = [name for name in missing if name in _DETECTABLE]
        number = f"{len(elements)} <{tag}> elements lack" if len(elements) > 1 else f"<{tag}> lacks"
        text = f"{number} {', '.join(missing)}"
        fix = "begin with the library's own dump (NCCL_TOPO_DUMP_FILE), which has them"
        if len(found) == len(missing):
            text += ", which the library reads from the system where the device is there, and stops where it is not"
            yield WARNING, elements[0].line, text, fix
        else:
            stop = next(name for name in missing if name not in found)
            text += (
                f": where the library cannot find that out itself, init stops with `Attribute {stop} of node {tag} "
                "not found`"
            )
            yield ERROR, elements[0].line, text, fix


def _names(element: Element) -> dict[str, Element]:
    return {each.attributes.get("name", ""): each for each in _all(element) if each.tag == "net"}


@RULES.rule("P02", ERROR, "NICs by the names of the plug-in", "others are dropped", needs=_NICS)
def _nics(file: NcclTopoFile) -> Iterator[Complaint]:
    dump = file.facts.dump
    known = set(file.facts.nics)
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
    count, boxes = len(_all(root)), file.facts.boxes or 1
    together = boxes * (count - 1) + 1
    if count > most:
        text = f"the file has {count} elements, the library reads {most}"
        yield root.line, text, "leave out unused devices"
    elif boxes > 1 and together > most * _NEARLY:
        text = (
            f"{boxes} hosts have {together} of the {most} elements of a tree, where ranks of several hosts join theirs "
            "(one domain of NVLink, or hosts that the library takes for one); NVLinks that it detects come on top"
        )
        yield WARNING if together > most else NOTE, root.line, text, "leave out unused devices"


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
    dump = _indexed(_system(file.facts.dump or b"", "the dump"))
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
