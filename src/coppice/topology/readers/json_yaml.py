"""Parse JSON and YAML into trees of mappings and lists, keeping numbers as the decimals they were written as.

A key may stand in a mapping at most once. Of YAML, only mappings, lists and scalars are read: anchors, aliases, tags
and several documents are refused, since a topology needs none and they are how a small text becomes a huge one.
"""

from __future__ import annotations

import json
import re
from typing import Any

from coppice.errors import InputError, MissingExtraError
from coppice.files import decode_utf8
from coppice.topology.readers.document import DuplicateKey, NumberText

_LONGEST_INT = 19
_MAX_DEPTH = 16
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "True": True, "false": False, "False": False}


def parse_json(data: bytes, *, file: str) -> Any:
    """Parse JSON text; numbers that are not plain integers become :class:`NumberText`.

    >>> parse_json(b'{"a": 0.10}', file="a.json")
    {'a': '0.10'}
    """
    text = decode_utf8(data, file=file)
    try:
        return json.loads(
            text,
            object_pairs_hook=_json_mapping,
            parse_float=NumberText,
            parse_int=_integer,
            parse_constant=NumberText,
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file}:{error.lineno}:{error.colno} is not JSON ({error.msg}): mend it, or write the file "
            "again if it was cut short."
        ) from None
    except RecursionError:
        raise InputError(f"{file} is nested beyond reason: a topology needs three levels.") from None


def parse_yaml(data: bytes, *, file: str) -> Any:
    r"""Parse plain YAML text; numbers that are not plain integers become :class:`NumberText`.

    >>> parse_yaml(b"a: 0.10\nb: [1, yes]", file="a.yaml")
    {'a': '0.10', 'b': [1, 'yes']}
    """
    try:
        import yaml
    except ImportError:
        package = "pyyaml"
        raise MissingExtraError.of(package, extra="yaml") from None
    text = decode_utf8(data, file=file)
    builder = _YamlBuilder(file)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event, yaml)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark is not None else file
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable character"
        raise InputError(f"{place} is not YAML ({str(reason)[:120]}): mend it.") from None
    except (ValueError, OverflowError):
        raise InputError(
            f"{file} is not YAML (an escape or number in it is out of range): mend it."
        ) from None
    return builder.documents[0] if builder.documents else None


def _integer(text: str) -> int | NumberText:
    return int(text) if len(text) <= _LONGEST_INT else NumberText(text)


def _json_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any] | DuplicateKey:
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return DuplicateKey(key)
        seen.add(key)
    return mapping


class _YamlBuilder:
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
            self.put(_yaml_mapping(self.stack.pop(), file=self.file, line=line))
        elif isinstance(event, yaml.ScalarEvent):
            self.put(_yaml_scalar(event.value) if event.implicit[0] else event.value)

    def put(self, value: Any) -> None:
        (self.stack[-1] if self.stack else self.documents).append(value)

    def refuse(self, line: int, what: str) -> None:
        raise InputError(f"{self.file}:{line} {what}: write the topology as plain mappings and lists.")


def _yaml_scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return NumberText(text) if len(text) < 4096 and _NUMBER.fullmatch(text) else text


def _yaml_mapping(flat: list[Any], *, file: str, line: int) -> dict[str, Any] | DuplicateKey:
    mapping: dict[str, Any] = {}
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not isinstance(key, str):
            raise InputError(
                f"{file}:{line} ends a mapping with a key that is not text: write keys such as gb_per_s."
            )
        if key in mapping:
            return DuplicateKey(key)
        mapping[key] = value
    return mapping
