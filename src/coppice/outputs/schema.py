"""JSON schemas of what commands print, made from the shapes and from the meanings of their keys."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from coppice.errors import InputError
from coppice.outputs.formats import OUTPUTS, format_of
from coppice.text import suggestion

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NULL = re.compile(r"; null(?! or)[^;.]*")

_HEAD = {
    "format": "Name of the format, which says what the other keys are.",
    "version": "Version of the format: keys may be added to one, none goes or changes its meaning.",
}


def shape_of(output: str) -> type:
    """The shape of an output: a TypedDict, or the struct of a file that is printed as JSON."""
    module, _, name = OUTPUTS[output].shape.partition(":")
    whole = module if "." in module else f"coppice.outputs.shapes.{module}"
    found: type = getattr(import_module(whole), name)
    return found


@cache
def key_meanings() -> dict[str, dict[str, str]]:
    """Meanings of keys by kind of value and key, as ``keys.toml`` has them."""
    return tomllib.loads(Path(__file__).with_name("keys.toml").read_text(encoding="utf-8"))


@cache
def _descriptions() -> dict[str, str]:
    return {key: text for kind in key_meanings().values() for key, text in kind.items()}


def make_schema(output: str) -> dict[str, Any]:
    """Make the JSON schema (draft 2020-12) of an output from its shape.

    Objects hold the keys that their shape declares, and no others.
    """
    shape = shape_of(output)
    (head,), parts = msgspec.json.schema_components([shape], ref_template="#/$defs/{name}")
    own = head["$ref"].rpartition("/")[2]
    shapes = shapes_below(shape)
    objects = {name: _described(part, shapes[name]) for name, part in parts.items()}
    top = objects[own]
    if f'"#/$defs/{own}"' not in json.dumps(parts):  # no shape holds another of its own
        del objects[own]
    properties = {
        "format": {"const": format_of(output), "description": _HEAD["format"]},
        "version": {"const": OUTPUTS[output].version, "description": _HEAD["version"]},
        **top["properties"],
    }
    made = {
        "$schema": DIALECT,
        "title": format_of(output),
        "description": " ".join((shape.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": ["format", "version", *top["required"]],
        "additionalProperties": False,
    }
    return {**made, "$defs": dict(sorted(objects.items()))} if objects else made


def read_schema(output: str) -> dict[str, Any]:
    """The schema of an output, by its name or that of its format.

    Raises:
        InputError: If there is none.

    Examples:
        >>> read_schema("coppice-bound-output")["properties"]["version"]["const"]
        1
        >>> read_schema("bonud")
        Traceback (most recent call last):
        coppice.errors.InputError: there is no output 'bonud': did you mean 'bound'?
    """
    formats = {format_of(name): name for name in OUTPUTS}
    name = formats.get(output, output)
    if name not in OUTPUTS:
        raise InputError(f"there is no output {output!r}: {suggestion(output, OUTPUTS)}")
    return make_schema(name)


def fields_of(shape: type) -> dict[str, Any]:
    """Keys of a shape in the order of their declaration, with their types."""
    return get_type_hints(shape, include_extras=True)


def _described(part: dict[str, Any], shape: type) -> dict[str, Any]:
    """The schema of one shape: keys in order, with what they mean."""
    if issubclass(shape, msgspec.Struct):
        return {**part, "required": part["required"], "additionalProperties": False}
    order = list(fields_of(shape))
    properties = {key: _meaning(key, part["properties"][key]) for key in order}
    return {
        "type": "object",
        "description": " ".join((shape.__doc__ or "").split()),
        "properties": properties,
        "required": [key for key in order if key in part["required"]],
        "additionalProperties": False,
    }


def _meaning(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A key's schema with what it means; when it is null stands only where it may be."""
    if "description" in schema:
        return schema
    text = _descriptions()[key]
    if {"type": "null"} not in schema.get("anyOf", ()):
        text = _NULL.sub("", text)
    return {**schema, "description": text}


def shapes_below(shape: type) -> dict[str, type]:
    """A shape and those that its keys hold, by name."""
    found: dict[str, type] = {}
    todo: list[Any] = [shape]
    while todo:
        each = todo.pop()
        if isinstance(each, type) and (
            hasattr(each, "__required_keys__") or issubclass(each, msgspec.Struct)
        ):
            if each.__name__ not in found:
                found[each.__name__] = each
                todo += fields_of(each).values()
        else:
            todo += getattr(each, "__args__", ())
    return found
