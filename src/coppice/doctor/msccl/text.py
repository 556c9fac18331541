"""MSCCL XML under examination, and rules about its syntax: constructs that the hand-written parsers mishandle.

They know elements, attributes in double quotes that follow each other with one blank, comments, and blank space of
blanks and line ends. The rest of XML they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from coppice.doctor.framework import ERROR, WARNING, Complaint, Rulebook, Subject
from coppice.export.msccl.document import Document
from coppice.export.msccl.targets import MscclTarget


@dataclass(frozen=True, eq=False, kw_only=True)
class MscclFile(Subject):
    """An MSCCL XML file under examination."""

    data: bytes  # Bytes of the file
    document: Document  # Its rows
    target: MscclTarget  # The runtime
    ranks: int | None  # Ranks of the communicator, or None if not known
    sizes: tuple[int, ...]  # Message sizes M in bytes at which it is to be used

    def integer(self, key: str) -> int | None:
        """Integer attribute of ``<algo>``, None where it is missing or invalid."""
        text = self.document.algo.get(key, "")
        return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 else None


RULES = Rulebook[MscclFile]()
"""Rules about MSCCL XML, for all runtimes that read it."""


_COMMENT = re.compile(rb"<!--(.*?)-->", re.DOTALL)
_TAG = re.compile(rb"<(?P<end>/?)(?P<name>[^\s<>/=]+)(?P<rest>(?:[^<>\"']|\"[^\"]*\"|'[^']*')*)>")
_VALUE = re.compile(rb"\"([^\"]*)\"")
_NEEDED = {
    "gpu": {"id", "i_chunks", "o_chunks", "s_chunks"},
    "tb": {"id", "send", "recv", "chan"},
    "step": {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"},
}
"""Attributes without which loaders refuse a file, of the elements below ``<algo>``."""
_GOOD_REST = re.compile(rb"(?: [^\s=\"']+=\"[^\"]*\")* ?/?")


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _plain(file: MscclFile) -> bytes:
    """The text with comments blanked out, of the same length."""
    return _COMMENT.sub(lambda match: re.sub(rb"[^\n]", b" ", match[0]), file.data)


@RULES.rule("X01", ERROR, "no XML declaration", "the loader stops with a parse error")
def _declaration(file: MscclFile) -> Iterator[Complaint]:
    text = _plain(file)
    place = text.find(b"<?")
    if place >= 0:
        words = "there is an XML declaration (<?...?>), which the loader takes for a broken element"
        yield _line(text, place), words, "delete that line"


@RULES.rule("X02", ERROR, "no byte order mark", "the loader stops with a parse error")
def _byte_order_mark(file: MscclFile) -> Iterator[Complaint]:
    if file.data.startswith(b"\xef\xbb\xbf"):
        yield 1, "the file begins with a byte order mark, the loader expects `<`", "save it without one"


@RULES.rule("X03", ERROR, "no tabs", "the loader stops with a parse error")
def _tabs(file: MscclFile) -> Iterator[Complaint]:
    place = _plain(file).find(b"\t")
    if place >= 0:
        text = "there is a tab; the loader knows blanks and line ends only"
        yield _line(file.data, place), text, "replace tabs by blanks"


@RULES.rule("X04", ERROR, "values in double quotes", "the loader reads the wrong value or the whole file")
def _quotes(file: MscclFile) -> Iterator[Complaint]:
    for match in _TAG.finditer(_plain(file)):
        if b"'" in _VALUE.sub(b"", match["rest"]):
            text = "a value stands in single quotes; the loader reads on to the next double quote"
            yield _line(file.data, match.start()), text, "use double quotes"
            return


@RULES.rule("X05", ERROR, "attributes one blank apart", "the loader stops with a parse error")
def _attribute_space(file: MscclFile) -> Iterator[Complaint]:
    for match in _TAG.finditer(_plain(file)):
        rest = match["rest"]
        if match["end"] and rest:
            text = f"there is blank space behind the name in </{match['name'].decode(errors='replace')[:20]}>"
            yield _line(file.data, match.start()), text, "write it without"
            return
        if b"'" in rest or b"\t" in rest or _GOOD_REST.fullmatch(rest):
            continue
        if re.fullmatch(rb"(?: *[^\s=\"']+=\"[^\"]*\")* */?", rest):
            continue  # more than one blank: an empty attribute to the loader, which counts but does no harm
        text = (
            f"attributes of <{match['name'].decode(errors='replace')[:20]}> are not separated by one blank each "
            "(a line end, or blanks around `=`)"
        )
        yield _line(file.data, match.start()), text, 'write name="value" name="value" on one line'
        return


@RULES.rule("X06", ERROR, "no text between or after elements", "the loader stops with a parse error")
def _loose_text(file: MscclFile) -> Iterator[Complaint]:
    text = _plain(file)
    for match in re.finditer(rb">([^<]*)", text):
        found = match[1].strip()
        if found:
            place = match.start(1) + len(match[1]) - len(match[1].lstrip())
            yield (
                _line(text, place),
                f"there is text between elements ({found[:30].decode(errors='replace')!r}); the loader expects `<`",
                "delete it (generators that print messages to standard output leave it behind)",
            )
            return


@RULES.rule("X07", ERROR, "comments begin with a blank", "the loader stops with a parse error")
def _comment_start(file: MscclFile) -> Iterator[Complaint]:
    for match in _COMMENT.finditer(file.data):
        first = re.split(rb"[ >/\n\r]", match[1], maxsplit=1)[0]
        if b"=" in first or len(first) > file.target.max_text - 4:
            text = "the first word of a comment holds `=` or is very long, and the loader takes it for an attribute"
            yield _line(file.data, match.start()), text, "begin comments with a blank"
            return


@RULES.rule("X08", ERROR, "values of 255 characters", "memory is overwritten")
def _long_values(file: MscclFile) -> Iterator[Complaint]:
    for match in _VALUE.finditer(_plain(file)):
        if len(match[1]) > file.target.max_text:
            text = (
                f"a value has {len(match[1])} characters; the loader has room for {file.target.max_text} and "
                "writes beyond it"
            )
            yield _line(file.data, match.start()), text, f"shorten it to {file.target.max_text} characters"
            return


@RULES.rule("X09", WARNING, "16 attributes of an element", "attributes are dropped without notice")
def _many_attributes(file: MscclFile) -> Iterator[Complaint]:
    """Every blank begins an attribute to the loader, also one that nothing follows."""
    most, first = file.target.max_attributes, None
    needed = {"algo": set(file.target.required), **_NEEDED}
    for match in _TAG.finditer(_plain(file)):
        if match["end"] or match["rest"].count(b" ") <= most:
            continue
        words = [word.partition(b"=")[0].decode(errors="replace") for word in _parts(match["rest"])]
        name, line = match["name"].decode(errors="replace"), _line(file.data, match.start())
        if len(words) <= most:
            continue
        text = f"<{name[:20]}> has {len(words)} attributes to the loader, which keeps {most}"
        fix = "remove attributes that no loader reads, and blanks beyond one"
        lost = [word for word in words[most:] if word in needed.get(name, ())]
        if lost:
            yield ERROR, line, f"{text}: {', '.join(lost)} is lost, without which it refuses the file", fix
            return
        first = first or (WARNING, line, f"{text} and drops the rest", fix)
    if first is not None:
        yield first


def _parts(rest: bytes) -> list[bytes]:
    """What stands behind each blank outside of quotes, of the text behind the name of an element."""
    return _VALUE.sub(b"", rest).rstrip(b"/").split(b" ")[1:]


@RULES.rule("X10", ERROR, "<algo>, <gpu>, <tb>, <step> only", "what is elsewhere is not read")
def _first_element(file: MscclFile) -> Iterator[Complaint]:
    for defect in file.document.defects:
        if defect.kind == "element":
            text = f"{defect.text}, which the loader passes over with all that it holds"
            yield WARNING, defect.line, text, "leave it out"
        elif defect.kind == "content":
            yield ERROR, defect.line, f"{defect.text}, at which the loader crashes", "leave it out"
        elif defect.kind == "nesting":
            text = f"{defect.text}, where the loader passes over it"
            yield ERROR, defect.line, text, "keep <algo>, <gpu>, <tb> and <step> in this nesting"


@RULES.rule("X11", WARNING, "no entities", "the text is taken as it stands")
def _entities(file: MscclFile) -> Iterator[Complaint]:
    place = _plain(file).find(b"&")
    if place >= 0:
        text = "there is an entity (&...;), which the loader does not expand"
        yield _line(file.data, place), text, "write the character itself, or do without it"


@RULES.rule("X13", ERROR, "no CDATA", "the loader stops with a parse error")
def _cdata(file: MscclFile) -> Iterator[Complaint]:
    place = _plain(file).find(b"<![")
    if place >= 0:
        text = "there is a CDATA section, which the loader takes for an element that never ends"
        yield _line(file.data, place), text, "delete it"


@RULES.rule("X12", ERROR, "elements that a rank reads", "the loader gives up, or overwrites memory")
def _nodes(file: MscclFile) -> Iterator[Complaint]:
    """A rank reads its own thread blocks and steps, and one element per GPU."""
    document, target = file.document, file.target
    nodes = [1 + document.num_gpus] * document.num_gpus
    gpu_of_block = document.tb["gpu"].tolist()
    blocks = [0] * document.num_gpus
    steps = [0] * document.num_blocks
    for gpu in gpu_of_block:
        nodes[gpu] += 1
        blocks[gpu] += 1
    for block in document.step["tb"]:
        nodes[gpu_of_block[block]] += 1
        steps[block] += 1
    if nodes and max(nodes) >= target.max_nodes:
        worst = nodes.index(max(nodes))
        text = (
            f"gpu {document.gpu['id'][worst]} reads {nodes[worst]:,} elements; the loader stops at "
            f"{target.max_nodes - 1:,}, {nodes[worst] - target.max_nodes + 1:,} fewer"
        )
        yield document.gpu["line"][worst], text, "use fewer steps or ranks"
    crowds = (
        ("GPUs", [document.num_gpus], [document.algo_line]),
        ("thread blocks", blocks, document.gpu["line"]),
        ("steps", steps, document.tb["line"]),
    )
    for word, numbers, lines in crowds:
        if numbers and max(numbers) > target.max_children:
            worst = numbers.index(max(numbers))
            text = (
                f"an element has {numbers[worst]:,} {word}; the loader has room for {target.max_children:,} and "
                "writes beyond it"
            )
            yield lines[worst], text, f"use {target.max_children:,} at most"
