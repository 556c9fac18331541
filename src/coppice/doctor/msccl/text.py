"""Doctor rules about the text: what the hand-written XML readers of the runtimes trip over.

They know elements, attributes in double quotes that follow each other with one blank, comments, and blank space of
blanks and line ends. The rest of XML they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coppice.doctor.msccl.diagnose import Case, Complaint, Rule, Severity

__all__ = ["RULES"]

_COMMENT = re.compile(rb"<!--(.*?)-->", re.DOTALL)
_TAG = re.compile(rb"<(?P<end>/?)(?P<name>[^\s<>/=]+)(?P<rest>(?:[^<>\"']|\"[^\"]*\"|'[^']*')*)>")
_VALUE = re.compile(rb"\"([^\"]*)\"")
_GOOD_REST = re.compile(rb"(?: [^\s=\"']+=\"[^\"]*\")* ?/?")


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _plain(case: Case) -> bytes:
    """The text with comments blanked out, of the same length."""
    return _COMMENT.sub(lambda match: re.sub(rb"[^\n]", b" ", match[0]), case.data)


def _declaration(case: Case) -> Iterator[Complaint]:
    text = _plain(case)
    place = text.find(b"<?")
    if place >= 0:
        yield (
            _line(text, place),
            "there is an XML declaration (<?...?>), which the loader takes for a broken element",
            "delete that line",
        )


def _byte_order_mark(case: Case) -> Iterator[Complaint]:
    if case.data.startswith(b"\xef\xbb\xbf"):
        yield 1, "the file begins with a byte order mark, the loader expects `<`", "save it without one"


def _tabs(case: Case) -> Iterator[Complaint]:
    place = _plain(case).find(b"\t")
    if place >= 0:
        yield (
            _line(case.data, place),
            "there is a tab; the loader knows blanks and line ends only",
            "replace tabs by blanks",
        )


def _quotes(case: Case) -> Iterator[Complaint]:
    for match in _TAG.finditer(_plain(case)):
        if b"'" in _VALUE.sub(b"", match["rest"]):
            yield (
                _line(case.data, match.start()),
                "a value stands in single quotes; the loader reads on to the next double quote",
                "use double quotes",
            )
            return


def _attribute_space(case: Case) -> Iterator[Complaint]:
    for match in _TAG.finditer(_plain(case)):
        rest = match["rest"]
        if b"'" in rest or b"\t" in rest or _GOOD_REST.fullmatch(rest):
            continue
        if re.fullmatch(rb"(?: *[^\s=\"']+=\"[^\"]*\")* */?", rest):
            continue  # more than one blank: an empty attribute to the loader, which counts but does no harm
        yield (
            _line(case.data, match.start()),
            (
                f"attributes of <{match['name'].decode(errors='replace')[:20]}> are not separated by one blank each "
                "(a line end, or blanks around `=`)"
            ),
            'write name="value" name="value" on one line',
        )
        return


def _loose_text(case: Case) -> Iterator[Complaint]:
    text = _plain(case)
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


def _comment_start(case: Case) -> Iterator[Complaint]:
    for match in _COMMENT.finditer(case.data):
        first = re.split(rb"[ >/\n\r]", match[1], maxsplit=1)[0]
        if b"=" in first or len(first) > case.target.max_text - 4:
            yield (
                _line(case.data, match.start()),
                "the first word of a comment holds `=` or is very long, and the loader takes it for an attribute",
                "begin comments with a blank",
            )
            return


def _long_values(case: Case) -> Iterator[Complaint]:
    for match in _VALUE.finditer(_plain(case)):
        if len(match[1]) > case.target.max_text:
            yield (
                _line(case.data, match.start()),
                (
                    f"a value has {len(match[1])} characters; the loader has room for {case.target.max_text} and "
                    "writes beyond it"
                ),
                f"shorten it to {case.target.max_text} characters",
            )
            return


def _many_attributes(case: Case) -> Iterator[Complaint]:
    for match in _TAG.finditer(_plain(case)):
        number = match["rest"].count(b"=")
        if number > case.target.max_attributes:
            yield (
                _line(case.data, match.start()),
                f"an element has {number} attributes; the loader keeps {case.target.max_attributes} and drops the rest",
                "remove attributes that no loader reads",
            )
            return


def _first_element(case: Case) -> Iterator[Complaint]:
    for defect in case.document.defects:
        if defect.kind in ("element", "nesting"):
            yield defect.line, defect.text, "keep <algo>, <gpu>, <tb> and <step> only, in this nesting"


def _entities(case: Case) -> Iterator[Complaint]:
    place = _plain(case).find(b"&")
    if place >= 0:
        yield (
            _line(case.data, place),
            "there is an entity (&...;), which the loader does not expand",
            "write the character itself, or do without it",
        )


def _nodes(case: Case) -> Iterator[Complaint]:
    """A rank reads its own thread blocks and steps, and one element per GPU."""
    document, target = case.document, case.target
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
        yield (
            document.gpu["line"][worst],
            (
                f"gpu {document.gpu['id'][worst]} reads {nodes[worst]:,} elements; the loader stops at "
                f"{target.max_nodes - 1:,}, {nodes[worst] - target.max_nodes + 1:,} fewer"
            ),
            "use fewer steps or ranks",
        )
    crowds = (
        ("GPUs", [document.num_gpus], [document.algo_line]),
        ("thread blocks", blocks, document.gpu["line"]),
        ("steps", steps, document.tb["line"]),
    )
    for word, numbers, lines in crowds:
        if numbers and max(numbers) > target.max_children:
            worst = numbers.index(max(numbers))
            yield (
                lines[worst],
                (
                    f"an element has {numbers[worst]:,} {word}; the loader has room for {target.max_children:,} and "
                    "writes beyond it"
                ),
                f"use {target.max_children:,} at most",
            )


_E, _W = Severity.ERROR, Severity.WARNING
RULES = (
    Rule("X01", _E, "no XML declaration", "the loader stops with a parse error", _declaration),
    Rule("X02", _E, "no byte order mark", "the loader stops with a parse error", _byte_order_mark),
    Rule("X03", _E, "no tabs", "the loader stops with a parse error", _tabs),
    Rule("X04", _E, "values in double quotes", "the loader reads the wrong value or the whole file", _quotes),
    Rule("X05", _E, "attributes one blank apart", "the loader stops with a parse error", _attribute_space),
    Rule("X06", _E, "no text between or after elements", "the loader stops with a parse error", _loose_text),
    Rule("X07", _E, "comments begin with a blank", "the loader stops with a parse error", _comment_start),
    Rule("X08", _E, "values of 255 characters", "memory is overwritten", _long_values),
    Rule("X09", _W, "16 attributes of an element", "attributes are dropped without notice", _many_attributes),
    Rule(
        "X10",
        _E,
        "<algo>, <gpu>, <tb>, <step> only",
        "elements are ignored or the file refused",
        _first_element,
    ),
    Rule("X11", _W, "no entities", "the text is taken as it stands", _entities),
    Rule("X12", _E, "elements that a rank reads", "the loader gives up, or overwrites memory", _nodes),
)
