"""Parsed MSCCL XML: attributes, and columns of thread blocks and steps with their line numbers.

Nothing is judged here but whether the text can be understood at all. What is missing or not a number becomes a
:class:`Defect` with its line: the reader refuses the first one, the doctor tells all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.parsers import expat

from coppice.errors import InputError
from coppice.recognising import impression

ABSENT = -(2**31)
"""Stands for a number that is missing or cannot be read; a defect tells which."""

STEP_TYPES = ("nop", "s", "r", "cpy", "re", "rcs", "rrs", "rrc", "rrcs", "ra")
"""Step types; columns hold their places in this tuple, -1 for any other."""

BUFFERS = ("i", "o", "s")
"""Buffers: input, output, scratch; columns hold their places, -1 for any other."""

_TYPE = {name: place for place, name in enumerate(STEP_TYPES)}
_BUFFER = {name: place for place, name in enumerate(BUFFERS)}
_MAX_BYTES = 2**31
_MAX_ELEMENTS = 50_000_000
_MAX_DEPTH = 16
_MAX_DEFECTS = 10_000
_MAX_VALUE = 4_096
_CHILD_OF = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}


@dataclass(frozen=True, slots=True)
class Defect:
    """A place in the file that a loader cannot parse."""

    kind: str  # `missing`, `number`, `word`, `octal`, `trailing`, `element`, `content` or `nesting`
    line: int  # Line of the element, from 1
    text: str  # What was expected and found


def _column() -> array[int]:
    return array("i")


@dataclass(frozen=True, eq=False)
class Document:
    """An MSCCL XML file as columns."""

    file: str  # Name for messages
    algo: dict[str, str]  # Attributes of `<algo>`
    algo_line: int  # Its line
    gpu: Mapping[str, array[int]]  # Columns of GPUs: `id`, `i_chunks`, `o_chunks`, `s_chunks`, `line`
    # Columns of thread blocks: `gpu` (row), `id`, `send`, `recv`, `chan`, `line`
    tb: Mapping[str, array[int]]
    # Columns of steps: `tb` (row), `s`, `type`, `srcbuf`, `srcoff`, `dstbuf`, `dstoff`, `cnt`, `depid`,
    # `deps`, `hasdep`, `line`
    step: Mapping[str, array[int]]
    defects: list[Defect]  # What could not be understood
    comments: list[str]  # Comments before `<algo>`

    @property
    def num_gpus(self) -> int:
        """Number of ``<gpu>`` elements."""
        return len(self.gpu["line"])

    @property
    def num_blocks(self) -> int:
        """Number of ``<tb>`` elements."""
        return len(self.tb["line"])

    @property
    def num_steps(self) -> int:
        """Number of ``<step>`` elements."""
        return len(self.step["line"])


_GPU_NUMBERS = ("id", "i_chunks", "o_chunks", "s_chunks")
_TB_NUMBERS = ("id", "send", "recv", "chan")
_STEP_NUMBERS = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")


@dataclass(slots=True)
class _DocumentBuilder:
    """Receives the events of the XML parser."""

    file: str
    parser: Any
    algo: dict[str, str] | None = None
    algo_line: int = 0
    gpu: dict[str, array[int]] = field(
        default_factory=lambda: {key: _column() for key in (*_GPU_NUMBERS, "line")}
    )
    tb: dict[str, array[int]] = field(
        default_factory=lambda: {key: _column() for key in ("gpu", *_TB_NUMBERS, "line")}
    )
    step: dict[str, array[int]] = field(
        default_factory=lambda: {
            key: _column() for key in ("tb", "type", "srcbuf", "dstbuf", *_STEP_NUMBERS, "line")
        }
    )
    stack: list[str] = field(default_factory=list)
    elements: int = 0
    defects: list[Defect] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)

    @property
    def line(self) -> int:
        return int(self.parser.CurrentLineNumber)

    def refuse(self, *_: object) -> NoReturn:
        raise InputError(
            f"{self.file}:{self.line} defines a document type or an entity: remove it, MSCCL XML needs none."
        )

    def defect(self, kind: str, text: str) -> None:
        if len(self.defects) < _MAX_DEFECTS:
            self.defects.append(Defect(kind, self.line, text))

    def number(self, tag: str, attributes: dict[str, str], key: str) -> int:
        """An integer of 32 bits, or ABSENT with a defect."""
        text = attributes.get(key)
        if text is None:
            self.defect("missing", f"expected an attribute {key} on <{tag}>, found none")
            return ABSENT
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
            self.defect("number", f"expected {key} as an integer on <{tag}>, found {text[:40]!r}")
            return ABSENT
        if digits[0] == "0" and len(digits) > 1:
            self.defect("octal", f"expected {key} without a leading zero on <{tag}>, found {text[:40]!r}")
        return int(text)

    def word(self, attributes: dict[str, str], key: str, words: Mapping[str, int]) -> int:
        """Place of a word, or -1 with a defect."""
        text = attributes.get(key)
        if text is None:
            self.defect("missing", f"expected an attribute {key} on <step>, found none")
            return -1
        place = words.get(text, -1)
        if place < 0:
            self.defect("word", f"expected {key} to be one of {', '.join(words)}, found {text[:40]!r}")
        return place

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        stack = self.stack
        if self.elements > _MAX_ELEMENTS or len(stack) >= _MAX_DEPTH:
            raise InputError(
                f"{self.file}:{self.line} passes the limits for MSCCL XML ({_MAX_ELEMENTS:,} elements, "
                f"{_MAX_DEPTH} levels): is this the right file?"
            )
        parent = stack[-1] if stack else None
        stack.append(tag)
        if tag not in _CHILD_OF:
            if parent == "step":
                self.defect("content", f"expected nothing inside <step>, found <{tag[:40]}>")
            else:
                self.defect("element", f"expected <algo>, <gpu>, <tb> or <step>, found <{tag[:40]}>")
            return
        if parent != _CHILD_OF[tag]:
            self.defect("nesting", f"expected <{tag}> inside <{_CHILD_OF[tag]}>, found it inside <{parent}>")
            stack[-1] = f"misplaced {tag}"
            return
        if tag == "step":
            self.add_step(attributes)
        elif tag == "tb":
            columns = self.tb
            columns["gpu"].append(len(self.gpu["line"]) - 1)
            for key in _TB_NUMBERS:
                columns[key].append(self.number(tag, attributes, key))
            columns["line"].append(self.line)
        elif tag == "gpu":
            for key in _GPU_NUMBERS:
                self.gpu[key].append(self.number(tag, attributes, key))
            self.gpu["line"].append(self.line)
        else:
            self.algo, self.algo_line = attributes, self.line
            if any(len(value) > _MAX_VALUE for value in attributes.values()):
                raise InputError(
                    f"{self.file}:{self.line} has an attribute of more than {_MAX_VALUE} characters: shorten it."
                )

    def add_step(self, attributes: dict[str, str]) -> None:
        columns = self.step
        columns["tb"].append(len(self.tb["line"]) - 1)
        columns["line"].append(self.line)
        # The common case in one go; whatever is wrong is then found attribute by attribute.
        try:
            kind, source, target = (
                _TYPE[attributes["type"]],
                _BUFFER[attributes["srcbuf"]],
                _BUFFER[attributes["dstbuf"]],
            )
        except KeyError:
            kind = self.word(attributes, "type", _TYPE)
            source = self.word(attributes, "srcbuf", _BUFFER)
            target = self.word(attributes, "dstbuf", _BUFFER)
        columns["type"].append(kind)
        columns["srcbuf"].append(source)
        columns["dstbuf"].append(target)
        for key in _STEP_NUMBERS:
            text = attributes.get(key)
            if text is not None and text.isdigit() and text.isascii() and (len(text) == 1 or text[0] != "0"):
                columns[key].append(int(text) if len(text) < 10 else self.number("step", attributes, key))
            elif text == "-1":
                columns[key].append(-1)
            else:
                columns[key].append(self.number("step", attributes, key))

    def end(self, _: str) -> None:
        self.stack.pop()

    def comment(self, text: str) -> None:
        if self.algo is None and len(self.comments) < 64:
            self.comments.append(text[:_MAX_VALUE])


def is_xml(data: bytes) -> bool:
    r"""Whether the content of a file is XML.

    Examples:
        >>> is_xml(b"\n<algo name='ring'>"), is_xml(b'{"format": "coppice-plan"}')
        (True, False)
    """
    return data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def parse_document(data: bytes, *, file: str) -> Document:
    """Parse MSCCL XML to columns.

    Text after ``</algo>`` is left out (generators print there), with a defect. White space before an XML declaration
    is accepted.

    Args:
        data: The text, in UTF-8.

    Examples:
        >>> document = parse_document(b'<algo name="x"><gpu id="0" i_chunks="1" o_chunks="1"/></algo>', file="x.xml")
        >>> document.num_gpus, document.defects[0].text
        (1, 'expected an attribute s_chunks on <gpu>, found none')
    """
    if len(data) > _MAX_BYTES:
        raise InputError(
            f"expected at most {_MAX_BYTES >> 30} GiB of MSCCL XML, found {len(data):,} bytes in {file}."
        )
    body = data.removeprefix(b"\xef\xbb\xbf")
    stripped = body.lstrip()
    if stripped.startswith(b"{"):
        raise InputError(
            f"expected MSCCL XML in {file}, found {impression(stripped)}: `coppice export PLAN --to msccl-xml --target "
            "NAME` writes a plan for a runtime."
        )
    if stripped and not stripped.startswith((b"<", b"\x00", b"\xff", b"\xfe")) and b"<algo" not in stripped:
        raise InputError(
            f"expected MSCCL XML in {file}, found {stripped[:20].decode(errors='replace')!r} where <algo> should be: "
            "`coppice compile FILE --program OUT --target NAME` takes programs in Python, `coppice export PLAN --to "
            "msccl-xml` plans."
        )
    if stripped.startswith(b"<?xml"):
        # Blank lines before a declaration are not XML; keep the line numbers.
        gap = body[: len(body) - len(stripped)]
        end = stripped.find(b"?>")
        body = gap + b" " * (end + 2) + stripped[end + 2 :] if end >= 0 else body
    parser = expat.ParserCreate("utf-8")
    builder = _DocumentBuilder(file=file, parser=parser)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CommentHandler = builder.comment
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.ExternalEntityRefHandler = builder.refuse
    try:
        parser.Parse(body, True)  # noqa: FBT003  (a C function without keywords)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        done = builder.algo is not None and not builder.stack
        if not (done and reason in _AFTER_THE_END):
            raise InputError(
                f"{file}:{error.lineno} is not well-formed XML ({reason}): mend it or make it again."
            ) from None
        builder.defects.append(
            Defect("trailing", error.lineno, "expected nothing after </algo>, found more text")
        )
    if builder.algo is None:
        raise InputError(f"expected an <algo> element in {file}, found none: is this MSCCL XML?")
    return Document(
        file=file,
        algo=builder.algo,
        algo_line=builder.algo_line,
        gpu=builder.gpu,
        tb=builder.tb,
        step=builder.step,
        defects=builder.defects,
        comments=builder.comments,
    )


_AFTER_THE_END = {
    expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT,
    expat.errors.XML_ERROR_SYNTAX,
    expat.errors.XML_ERROR_INVALID_TOKEN,
    expat.errors.XML_ERROR_UNCLOSED_TOKEN,
}
