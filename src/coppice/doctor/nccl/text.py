"""Doctor rules about XML syntax that the parser of NCCL and RCCL mishandles.

It wants no declaration, no tabs, all attributes on the line of their element, and nothing around ``=``; it keeps 16
attributes of an element (a second blank counts as one more) and 253 characters of a name or value, decodes no entities,
and passes over elements that it does not know, with all that they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint
from coppice.doctor.job_facts import TuningFile
from coppice.doctor.nccl.graph import RULES as GRAPH_RULES
from coppice.doctor.nccl.topo import RULES as TOPO_RULES

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
        yield from _attributes(name, match["rest"], line)
        if name not in known and name not in unknown:
            unknown.add(name)
            words = f"<{name[:40]}> is not known and passed over with all that it holds"
            yield NOTE, line, words, "leave it out"


def _attributes(name: str, rest: str, line: int) -> Iterator[Complaint]:
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
