"""XML that NCCL's and RCCL's own parser reads: it is stricter than XML in some ways and looser in others.

The parser wants no prolog, no tabs, and all attributes on the line of their element, with a single space before each
and none around ``=`` or before ``/>``; it keeps 16 attributes of an element, 253 characters of a name or value, and
decodes no entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from coppice.errors import InputError
from coppice.topology.readers.xml_tree import Element

__all__ = ["MOST_NODES", "xml_text"]

MOST_NODES = {"1": 256, "2": 8192}
"""Elements of a topology file for one host, by the version of its root: NCCL, RCCL."""

_MOST_ATTRIBUTES = 16
_MOST_CHARACTERS = 253
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VALUE = re.compile(r"[^<>&\"'\x00-\x1f\x7f]*")


def xml_text(root: Element) -> str:
    r"""The text of an element with all that it holds.

    Args:
        root: The element; where it came from does not matter.

    Raises:
        InputError: If the parser could not read it back.

    Examples:
        >>> from coppice.topology.readers.xml_tree import parse_xml
        >>> xml_text(parse_xml(b"<?xml version='1.0'?>\n<system version = '1'><cpu numaid='0' /></system>", file="a"))
        '<system version="1">\n  <cpu numaid="0"/>\n</system>\n'
    """
    version = root.attributes.get("version")
    if version not in MOST_NODES:
        msg = f'expected version="1" (NCCL) or "2" (RCCL) on <{root.tag}> at {root.where}, found {version!r}.'
        raise InputError(msg)
    lines = list(_lines(root, 0))
    nodes = _count(root)
    if nodes > MOST_NODES[version]:
        msg = f"expected at most {MOST_NODES[version]} elements for one host, found {nodes}: leave out unused devices."
        raise InputError(msg)
    return "".join(f"{line}\n" for line in lines)


def _lines(element: Element, depth: int) -> Iterator[str]:
    start = f"{'  ' * depth}<{element.tag}{_attributes(element, element.attributes)}"
    if not element.children:
        yield f"{start}/>"
        return
    yield f"{start}>"
    for child in element.children:
        yield from _lines(child, depth + 1)
    yield f"{'  ' * depth}</{element.tag}>"


def _attributes(element: Element, attributes: Mapping[str, str]) -> str:
    if len(attributes) > _MOST_ATTRIBUTES:
        where = f"<{element.tag}> at {element.where}"
        msg = f"NCCL keeps {_MOST_ATTRIBUTES} attributes, found {len(attributes)} on {where}: leave some out."
        raise InputError(msg)
    for name, value in ((element.tag, ""), *attributes.items()):
        if (
            not _NAME.fullmatch(name)
            or not _VALUE.fullmatch(value)
            or _longest((name, value)) > _MOST_CHARACTERS
        ):
            msg = f"NCCL's parser cannot read {name[:40]}={value[:40]!r} at {element.where}: use plain characters."
            raise InputError(msg)
    return "".join(f' {name}="{value}"' for name, value in attributes.items())


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts))


def _count(element: Element) -> int:
    return 1 + sum(map(_count, element.children))
