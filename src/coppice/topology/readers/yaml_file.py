"""The native file written as YAML: the same document, with the same exactness.

Only plain YAML is read: mappings, lists and scalars. Anchors, aliases, tags and several documents are
refused, since a topology needs none and they are how a small text becomes a huge one.
"""

from __future__ import annotations

import re
from typing import Any

from coppice.errors import InputError, MissingExtraError
from coppice.topology.model import Topology
from coppice.topology.readers.document import DuplicateKey, NumberText, topology_from_document
from coppice.topology.readers.reading import ReadOptions

__all__ = ["parse_yaml", "read_yaml"]

_MAX_DEPTH = 16
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
}


def read_yaml(
    data: bytes, *, file: str, name: str | None, default_name: str, options: ReadOptions
) -> Topology:
    """The topology of a native file written as YAML.

    Args:
        data: The text, in UTF-8.
        file: Name of the file, for messages.
        name: Replaces the name in the file.
        default_name: Stands in where the file has no name.
        options: Only ``round`` has a meaning here.

    Raises:
        InputError: If it is no plain YAML (with the line) or no topology (with the path).
        MissingExtraError: If the package PyYAML is not installed.
    """
    document = parse_yaml(data, file=file)
    return topology_from_document(
        document, where=f"{file} $", name=name, default_name=default_name, options=options
    )


def parse_yaml(data: bytes, *, file: str) -> Any:
    r"""The tree of a plain YAML text, with numbers that are not plain integers as :class:`NumberText`.

    >>> parse_yaml(b"a: 0.10\nb: [1, yes]", file="a.yaml")
    {'a': '0.10', 'b': [1, 'yes']}

    Raises:
        InputError: If it is not YAML in UTF-8, or not plain.
        MissingExtraError: If the package PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        package = "pyyaml"
        raise MissingExtraError.of(package, extra="yaml") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        raise InputError(msg) from None
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event, yaml)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark is not None else file
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable character"
        msg = f"{place} is not YAML ({str(reason)[:120]}): mend it."
        raise InputError(msg) from None
    except (ValueError, OverflowError):
        msg = f"{file} is not YAML (an escape or number in it is out of range): mend it."
        raise InputError(msg) from None
    return builder.documents[0] if builder.documents else None


class _Builder:
    """Builds the tree from parser events: depth and aliases are checked before anything is expanded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.documents: list[Any] = []
        self.stack: list[list[Any]] = []

    def take(self, event: Any, yaml: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent) and self.documents:
            self.refuse(line, "begins a second document")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self.refuse(line, "uses an anchor or alias")
        if getattr(event, "tag", None) not in (None, "!"):
            self.refuse(line, "uses a tag")
        if isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            if len(self.stack) >= _MAX_DEPTH:
                self.refuse(line, f"nests more than {_MAX_DEPTH} levels")
            self.stack.append([])
        elif isinstance(event, yaml.SequenceEndEvent):
            self.put(self.stack.pop())
        elif isinstance(event, yaml.MappingEndEvent):
            self.put(_mapping(self.stack.pop(), file=self.file, line=line))
        elif isinstance(event, yaml.ScalarEvent):
            self.put(_scalar(event.value) if event.implicit[0] else event.value)

    def put(self, value: Any) -> None:
        (self.stack[-1] if self.stack else self.documents).append(value)

    def refuse(self, line: int, what: str) -> None:
        msg = f"{self.file}:{line} {what}: write the topology as plain mappings and lists."
        raise InputError(msg)


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return NumberText(text) if len(text) < 4096 and _NUMBER.fullmatch(text) else text


def _mapping(flat: list[Any], *, file: str, line: int) -> dict[str, Any] | DuplicateKey:
    mapping: dict[str, Any] = {}
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not isinstance(key, str):
            msg = f"{file}:{line} ends a mapping with a key that is not text: write keys such as gb_per_s."
            raise InputError(msg)
        if key in mapping:
            return DuplicateKey(key)
        mapping[key] = value
    return mapping
