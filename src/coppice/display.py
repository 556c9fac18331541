"""Notebook output: classes register here, and the package supplies the renderers.

A topology stands on the ground floor and knows no picture; :mod:`coppice` enters who draws it, by name, so that nothing
is imported before a notebook asks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MOST_CHARACTERS = 400
"""A ``repr`` is shorter."""

DRAWN_BY: dict[str, str] = {}
"""Module and function that make the HTML of an object, by the name of its class: ``module:function``."""


def loaded(where: str) -> Any:
    """What stands at ``module:name``, a module above the one that asks, loaded now.

    >>> loaded("math:gcd")(4, 6)
    2
    """
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


class Shown:
    """Base of classes that a notebook shows as a table and a picture."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML for a notebook; None, and the notebook prints the ``repr``, where nobody draws this class."""
        for kind in type(self).__mro__:
            where = DRAWN_BY.get(kind.__name__)
            if where is not None:
                return str(loaded(where)(self))
        return None


class Brief:
    """Base of dataclasses with columns: of long fields the ``repr`` shows only how much they hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        from dataclasses import fields  # loads much that the start of a command need not wait for

        given = (f"{each.name}={_brief(getattr(self, each.name))}" for each in fields(self) if each.repr)  # type: ignore[arg-type]
        text = f"{type(self).__name__}({', '.join(given)})"
        return text if len(text) < MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 5]}...)"


def _brief(value: Any) -> str:
    """A value in a few characters."""
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):  # NumPy is not loaded for this
        return f"<{value.size} {value.dtype}>"
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > 4:
        return f"<{len(value)} items>"
    if isinstance(value, (str, bytes)) and len(value) > 60:
        return f"<{len(value)} characters>"
    text = repr(value)
    return text if len(text) <= 120 else f"<{type(value).__name__}>"
