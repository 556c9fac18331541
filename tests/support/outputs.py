"""What commands print as JSON is held to the schemas that `coppice schema` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from coppice.outputs.formats import OUTPUTS, document, format_of
from coppice.outputs.schema import read_schema

NAMES = {format_of(name): name for name in OUTPUTS}


@cache
def validator(output: str) -> Draft202012Validator:
    """A checker of the schema that `coppice schema` prints."""
    schema = read_schema(output)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def faults(found: Any) -> list[str]:
    """Where a document does not accord with the schema of its format; unknown keys are faults."""
    if not isinstance(found, dict) or found.get("format") not in NAMES:
        return [f"no output has the format {found.get('format') if isinstance(found, dict) else type(found)}"]
    errors = validator(NAMES[found["format"]]).iter_errors(found)
    return [f"{each.json_path}: {each.message}"[:400] for each in errors]


def require_valid(found: Any) -> None:
    """Fail if a document does not accord with the schema of its format."""
    wrong = faults(found)
    assert not wrong, "\n".join([f"{found.get('format', found)}:", *wrong[:10]])


def checked_document(output: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """What commands print instead of :func:`document` while tests run: the same, once it is found valid."""
    found = document(output, value)
    require_valid(json.loads(json.dumps(found, allow_nan=False)))
    return found
