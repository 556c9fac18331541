"""A minimal, strict XML parser: elements with line numbers, no DTD, no custom entities, bounded size.

Topology files are plain nests of elements with attributes. Everything that XML could do beyond that (document
types, entity definitions, processing of other files) is refused, and so are files with more elements, levels
or attributes than any machine needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn
from xml.parsers import expat

from coppice.errors import InputError

_MAX_ELEMENTS = 50_000
_MAX_DEPTH = 64
_MAX_ATTRIBUTES = 64
_MAX_TEXT = 8192
_HWLOC = "the output of lstopo (hwloc), which does not know how NVLinks join GPUs"
_FOREIGN = {
    "topology": _HWLOC,
    "topologydiff": _HWLOC,
    "hwloc": _HWLOC,
    "nvidia_smi_log": "the output of `nvidia-smi -q -x`, which does not know how GPUs are joined",
    "nvsmi": "the output of `nvidia-smi -q -x`, which does not know how GPUs are joined",
    "domain": "a virtual machine of libvirt, which does not know NVLinks",
}
"""XML that people take for a topology, by the name of its root or how its document type begins."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element: its tag, attributes, children, and where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    file: str
    children: list[Element] = field(default_factory=list)

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    def named(self, *tags: str) -> list[Element]:
        """The children with one of these tags."""
        return [child for child in self.children if child.tag in tags]

    def text(self, key: str, default: str | None = None) -> str:
        """Value of an attribute."""
        value = self.attributes.get(key, default)
        if value is None:
            raise InputError(
                f"expected an attribute {key} on <{self.tag}> at {self.where}, found none: add it."
            )
        return value

    def integer(self, key: str, *, low: int, high: int, default: int | None = None) -> int:
        """Value of an integer attribute within a range."""
        text = self.attributes.get(key, "").strip()
        if not text and default is not None:
            return default
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 19 and low <= int(text) <= high:
            return int(text)
        raise InputError(
            f"expected {key} as an integer {low} .. {high} on <{self.tag}> at {self.where}, found "
            f"{text[:40]!r}."
        )

    def number(self, key: str, *, default: Fraction) -> Fraction:
        """A number of 0 or more; ``default`` where absent or empty."""
        text = self.attributes.get(key, "").strip()
        if not text:
            return default
        try:
            value = Fraction(text) if len(text) < 32 and "e" not in text.lower() else None
        except (ValueError, ZeroDivisionError):
            value = None
        if value is None or value < 0:
            raise InputError(
                f"expected {key} as a number >= 0 on <{self.tag}> at {self.where}, found {text[:40]!r}."
            )
        return value


@dataclass(slots=True)
class _XmlBuilder:
    file: str
    first_line: int
    parser: Any
    root: Element | None = None
    stack: list[Element] = field(default_factory=list)
    elements: int = 0

    @property
    def line(self) -> int:
        return int(self.parser.CurrentLineNumber) + self.first_line

    def refuse_document_type(self, name: str, system: str | None, *_: object) -> NoReturn:
        self.refuse_foreign(name, system or "")
        self.refuse()

    def refuse(self, *_: object) -> NoReturn:
        raise InputError(
            f"{self.file}:{self.line} defines a document type or an entity, which topology files never do: give "
            "the file that NCCL_TOPO_DUMP_FILE writes in a job."
        )

    def refuse_foreign(self, root: str, dtd: str = "") -> None:
        """Name the XML of other tools, known by the name of its root or its document type."""
        what = _FOREIGN.get(root) or next(
            (what for key, what in _FOREIGN.items() if dtd.startswith(key)), None
        )
        if what is not None:
            raise InputError(
                f"{self.file}:{self.line} is {what}: give the file that NCCL_TOPO_DUMP_FILE writes in a job, or "
                "the text of `nvidia-smi topo -m`."
            )

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if (
            self.elements > _MAX_ELEMENTS
            or len(self.stack) >= _MAX_DEPTH
            or len(attributes) > _MAX_ATTRIBUTES
        ):
            raise InputError(
                f"{self.file}:{self.line} passes the limits for topology files ({_MAX_ELEMENTS} elements, "
                f"{_MAX_DEPTH} levels, {_MAX_ATTRIBUTES} attributes): is this the right file?"
            )
        if any(len(value) > _MAX_TEXT for value in attributes.values()):
            raise InputError(
                f"{self.file}:{self.line} has an attribute of more than {_MAX_TEXT} characters: shorten it."
            )
        if self.root is None:
            self.refuse_foreign(tag)
        element = Element(tag=tag, attributes=attributes, line=self.line, file=self.file)
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)

    def end(self, _: str) -> None:
        self.stack.pop()


def parse_xml(data: bytes, *, file: str) -> Element:
    r"""Parse XML text and return its root element.

    White space before the XML declaration is accepted, although XML forbids it: real files begin with blank
    lines.

    Args:
        data: The text, in UTF-8.

    Examples:
        >>> root = parse_xml(b'<system version="1">\n<cpu numaid="0"/></system>', file="a.xml")
        >>> root.children[0].where, root.children[0].integer("numaid", low=0, high=9)
        ('a.xml:2', 0)
    """
    body = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    blank = data[: len(data) - len(body)]
    parser = expat.ParserCreate("utf-8")
    builder = _XmlBuilder(file=file, first_line=blank.count(b"\n"), parser=parser)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.StartDoctypeDeclHandler = builder.refuse_document_type
    parser.EntityDeclHandler = builder.refuse
    parser.ExternalEntityRefHandler = builder.refuse
    try:
        parser.Parse(body, True)  # noqa: FBT003  (a C function without keywords)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise InputError(
            f"{file}:{error.lineno + builder.first_line} is not well-formed XML ({reason}): mend or dump "
            "it again."
        ) from None
    if builder.root is None:
        raise InputError(f"{file} holds no XML element: dump the topology again.")
    return builder.root
