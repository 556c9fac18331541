r"""Logs inside JSON, as containers and log collectors keep them: the text of all records, in order.

Docker writes ``{"log": "...\\n", "stream": ..., "time": ...}`` line by line, CloudWatch answers with ``{"events":
[{"timestamp": ..., "message": "..."}]}``, other collectors write ``message`` or ``textPayload``.
"""

from __future__ import annotations

import json
from typing import Any

_KEYS = ("log", "message", "textPayload", "msg")


def unwrapped(text: str) -> str | None:
    r"""The log inside; None where a text is no such JSON.

    Examples:
        >>> unwrapped('{"log": "# Using\\n", "stream": "stdout"}\n{"log": "a", "time": "t"}\n')
        '# Using\na\n'
        >>> unwrapped('{"results": []}') is None
        True
    """
    first = text.lstrip()[:4096]
    if not first.startswith(("{", "[")) or not any(f'"{key}"' in first for key in _KEYS):
        return None
    try:
        whole = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return None
    if len(whole) == 1 and isinstance(whole[0], dict) and isinstance(whole[0].get("events"), list):
        whole = whole[0]["events"]
    elif len(whole) == 1 and isinstance(whole[0], list):
        whole = whole[0]
    parts = [_text(record) for record in whole]
    if not parts or None in parts:
        return None
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part is not None)


def _text(record: Any) -> str | None:
    if not isinstance(record, dict):
        return None
    return next((record[key] for key in _KEYS if isinstance(record.get(key), str)), None)
