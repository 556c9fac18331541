"""Doctor rules for graph and topology files in XML: what NCCL and RCCL misread, ignore, or never check.

Graphs are named by ``NCCL_GRAPH_FILE``, topologies by ``NCCL_TOPO_FILE``. The XML reader wants no declaration, no tabs,
all attributes on the line of their element, and nothing around ``=``; it keeps 16 attributes of an element (a second
blank counts as one more) and 253 characters of a name or value, decodes no entities, and passes over elements that it
does not know, with all that they hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Need, Rulebook
from coppice.doctor.job_facts import DUMP, SHAPES, TuningFile
from coppice.errors import InputError
from coppice.export.nccl.graph import TYPES, NcclGraph, read_nccl_graph
from coppice.export.nccl.topo_xml import MOST_NODES
from coppice.text import plural
from coppice.topology.readers.gpu_links import bus_id
from coppice.topology.readers.link_rates import pcie_speed_known
from coppice.topology.readers.xml_tree import Element, parse_xml


class NcclGraphFile(TuningFile):
    """A graph file (``NCCL_GRAPH_FILE``) under examination."""

    @cached_property
    def graphs(self) -> tuple[NcclGraph, ...]:
        """Its graphs."""
        return read_nccl_graph(self.data, file=self.file)


GRAPH_RULES = Rulebook[NcclGraphFile]()
"""Rules about graph files."""


@GRAPH_RULES.rule(
    "G01", ERROR, "half of the channels that exist", "channels are doubled past the end of a table"
)
def _too_many(file: NcclGraphFile) -> Iterator[Complaint]:
    most = file.facts.most_channels // 2
    for graph in file.graphs:
        if graph.nchannels > most:
            text = f"{graph.nchannels} channels for the {graph.kind} graph: they are doubled, and {2 * most} exist"
            yield graph.line, text, f"keep {most} at most"


@GRAPH_RULES.rule(
    "G02", ERROR, "nchannels is the number of channels", "missing ones are read from empty memory"
)
def _miscounted(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        if graph.nchannels == 0:
            text = f"nchannels is 0: the {graph.kind} graph of the file is not used, the library searches one"
            yield WARNING, graph.line, text, f"write {len(graph.channels)}, or leave the graph out"
        elif graph.nchannels != len(graph.channels):
            text = f"nchannels is {graph.nchannels}, which is believed, and there are {len(graph.channels)} channels"
            yield ERROR, graph.line, text, f"write {len(graph.channels)}"


@GRAPH_RULES.rule("G03", ERROR, "every GPU once", "rings are checked at init, trees not at all")
def _wrong_gpus(file: NcclGraphFile) -> Iterator[Complaint]:
    graphs = file.graphs
    count = file.facts.gpus_of_host
    everyone = {gpu.dev for graph in graphs for channel in graph.channels for gpu in channel.gpus}
    expected = set(range(count)) if count is not None else everyone
    for graph in graphs:
        for channel in graph.channels:
            devs = [gpu.dev for gpu in channel.gpus]
            twice = sorted(dev for dev, times in Counter(devs).items() if times > 1)
            missing, extra = sorted(expected - set(devs)), sorted(set(devs) - expected)
            what = {"ring": "init fails"}.get(graph.kind, "the job hangs or fails")
            if twice:
                text = f"GPU {twice[0]} stands twice in a channel of the {graph.kind} graph: {what}"
                yield channel.line, text, "name every GPU once"
            if graph.kind == "nvls":
                continue  # Only the first GPU of a channel counts.
            if missing:
                listed = ", ".join(map(str, missing[:8]))
                text = f"a channel of the {graph.kind} graph lacks GPU {listed}: {what}"
                yield channel.line, text, "add it"
            if extra:
                listed = ", ".join(map(str, extra[:8]))
                text = f"there is no GPU {listed} on the host: init fails"
                yield channel.line, text, "numbers are hexadecimal"


@GRAPH_RULES.rule("G04", WARNING, "no ranks", "they belong to one node of one job")
def _ranks(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        lines = [gpu.line for channel in graph.channels for gpu in channel.gpus if gpu.rank is not None]
        if lines:
            text = f"{len(lines)} GPUs of the {graph.kind} graph have a rank, that of one node, which wins over dev"
            yield lines[0], text, "remove the attribute rank"


@GRAPH_RULES.rule("G05", ERROR, "types that exist", "unknown ones count as the best")
def _types(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        for name, text in (("typeintra", graph.type_intra), ("typeinter", graph.type_inter)):
            if text not in TYPES:
                words = f"{name} is {text[:40]!r}, read as the best class, LOC: LL128 may go on where it corrupts data"
                yield graph.line, words, f"copy it from a dump, one of {', '.join(TYPES)}"


@GRAPH_RULES.rule(
    "G06", ERROR, "types no better than those of the machine", "protocols depend on them", needs=DUMP
)
def _better(file: NcclGraphFile) -> Iterator[Complaint]:
    dump = {graph.id: graph for graph in read_nccl_graph(file.facts.dump or b"", file="the dump")}
    for graph in file.graphs:
        real = dump.get(graph.id)
        for name, text, seen in (
            ("typeintra", graph.type_intra, None if real is None else real.type_intra),
            ("typeinter", graph.type_inter, None if real is None else real.type_inter),
        ):
            if seen in TYPES and text in TYPES and TYPES.index(text) < TYPES.index(seen):
                words = f"{name} is {text}, in the dump it is {seen}: LL128 may go on where it corrupts data"
                yield graph.line, words, f"write {seen}"


@GRAPH_RULES.rule(
    "G07", ERROR, "whole nodes", "every communicator of the process reads the file", needs=SHAPES
)
def _subgroups(file: NcclGraphFile) -> Iterator[Complaint]:
    most = max((len(channel.gpus) for graph in file.graphs for channel in graph.channels), default=0)
    for nodes, ranks in sorted(file.facts.known_shapes):
        if ranks < nodes * most:
            text = f"a communicator of {ranks} ranks on {nodes} nodes has fewer GPUs of a node than {most}"
            fix = "set the variable around the creation of one communicator only"
            yield 0, f"{text}: its init fails", fix


@GRAPH_RULES.rule("G08", WARNING, "rail-clean channels", "data cross between rails in the network")
def _rails(file: NcclGraphFile) -> Iterator[Complaint]:
    for graph in file.graphs:
        if graph.kind != "ring":
            continue
        # With crossnic=2 the library exchanges channels 0 and 1, 2 and 3, ... on every other node.
        swapped = graph.crossnic == 2 and len(graph.channels) % 2 == 0
        for at, channel in enumerate(graph.channels):
            entry = graph.channels[at ^ 1].entry if swapped else channel.entry
            if entry == channel.exit:
                continue
            text = (
                f"data leave by NIC {channel.exit} and reach NIC {entry} of the next node, which reads "
                "the same file: they change the rail"
            )
            fix = "name the same NIC first and last"
            if swapped:
                text += " (with crossnic=2 pairs of channels change places on odd nodes)"
                fix = "let each channel of a pair begin with the NIC with which the other one ends"
            yield channel.line, text, fix


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


TOPO_RULES = Rulebook[NcclTopoFile]()
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


@TOPO_RULES.rule("P01", WARNING, "whole texts of PCIe speeds", "others count as PCIe 3")
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


@TOPO_RULES.rule("P06", ERROR, "attributes that the reader needs", "init stops")
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


@TOPO_RULES.rule("P02", ERROR, "NICs by the names of the plug-in", "others are dropped", needs=_NICS)
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


@TOPO_RULES.rule("P03", WARNING, "all links of a GPU or none", "one entry switches detection off for its GPU")
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


@TOPO_RULES.rule("P04", ERROR, "elements that fit, of one host", "init fails")
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


@TOPO_RULES.rule("P05", WARNING, "what the library made of it", "it detects some things itself", needs=DUMP)
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


_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[^\s<>/=!?]+)(?P<rest>(?:[^<>\"']|\"[^\"]*\"|'[^']*')*)>")
_ATTRIBUTE = re.compile(r"\s*(?P<name>[^\s=\"']+)(?P<before>\s*)=(?P<after>\s*)(?P<value>\"[^\"]*\"|'[^']*')")
_ENTITY = re.compile(r"&[#\w]+;")
_MOST_ATTRIBUTES = 16
_MOST_CHARACTERS = 253

_KNOWN = {
    "graphs": {"graphs", "graph", "channel", "net", "gpu"},
    "system": {"system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "pcilink"},
}


def _text_rules(file: TuningFile) -> Iterator[Complaint]:
    text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), file.text)
    if file.data.startswith(b"\xef\xbb\xbf"):
        yield ERROR, 1, "the file begins with a byte order mark", "save it without one"
    declared = text.find("<?")
    if declared >= 0:
        yield ERROR, _line(text, declared), "there is an XML declaration (<?...?>)", "delete that line"
    tab = text.find("\t")
    if tab >= 0:
        words = "there is a tab, where the reader knows blanks only"
        yield ERROR, _line(text, tab), words, "indent by two blanks"
    unknown: set[str] = set()
    known: set[str] | None = None
    for match in _TAG.finditer(text):
        name, line = match["name"], _line(text, match.start())
        if match["end"]:
            continue
        if known is None:
            known = _KNOWN.get(name, {name})
            if not re.search(r"\sversion\s*=", match["rest"]):
                yield ERROR, line, f"<{name[:40]}> has no version", 'add version="1" (NCCL) or "2" (RCCL)'
        yield from _written_attributes(name, match["rest"], line)
        if name not in known and name not in unknown:
            unknown.add(name)
            words = f"<{name[:40]}> is not known and passed over with all that it holds"
            yield NOTE, line, words, "leave it out"


def _written_attributes(name: str, rest: str, line: int) -> Iterator[Complaint]:
    found = list(_ATTRIBUTE.finditer(rest))
    element = f"<{name[:40]}>"
    if "\n" in rest.rstrip("/ "):
        yield ERROR, line, f"{element} goes on in the next line", "write all attributes on one line"
    if any(match["before"] or match["after"] for match in found):
        yield ERROR, line, f"{element} has blanks around `=`", 'write name="value"'
    # Every blank begins an attribute to the reader, also one that nothing follows.
    blanks = sum(1 for char in re.sub(r"\"[^\"]*\"|'[^']*'", "", rest) if char == " ")
    if blanks > _MOST_ATTRIBUTES:
        counted = f"{len(found)} attributes" + (
            f" and {blanks - len(found)} blanks too many" if blanks > len(found) else ""
        )
        text = f"{element} has {counted}: {_MOST_ATTRIBUTES} are kept, the last ones are lost"
        yield ERROR, line, text, "leave attributes out, with one blank between them"
    for match in found:
        value = match["value"][1:-1]
        if max(len(match["name"]), len(value)) > _MOST_CHARACTERS:
            text = f"{match['name'][:40]} of {element} has more than {_MOST_CHARACTERS} characters"
            yield ERROR, line, text, "shorten it"
        if _ENTITY.search(value):
            text = f"{match['name'][:40]} of {element} has an entity, which is not decoded"
            yield WARNING, line, text, "write the character itself, or none"


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


_RULE = (
    "G09",
    ERROR,
    "the XML that the reader knows",
    "the file is refused, or read otherwise than it looks",
)
GRAPH_RULES.rule(*_RULE)(_text_rules)
TOPO_RULES.rule(*_RULE)(_text_rules)
