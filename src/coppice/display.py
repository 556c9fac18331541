"""How objects show themselves in a notebook: classes name themselves here, and the package says who draws them.

A topology stands on the ground floor and knows no picture; :mod:`coppice` enters who draws it, by name, so that nothing
is imported before a notebook asks.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["DRAWN_BY", "Shown"]

DRAWN_BY: dict[str, str] = {}
"""Module and function that make the HTML of an object, by the name of its class: ``module:function``."""


class Shown:
    """Base of classes that a notebook shows as a table and a picture."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML for a notebook; None, and the notebook prints the ``repr``, where nobody draws this class."""
        for kind in type(self).__mro__:
            where = DRAWN_BY.get(kind.__name__)
            if where is not None:
                module, _, function = where.partition(":")
                return str(getattr(import_module(module), function)(self))
        return None
