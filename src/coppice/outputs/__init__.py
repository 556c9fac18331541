"""Shapes of the JSON that commands print: one record a noun, one meaning a key, one schema a format.

Commands say which format they print (:data:`~coppice.outputs.formats.OUTPUTS`); what it holds is declared once,
in :mod:`coppice.outputs.shapes`, and what its keys mean in ``keys.toml``. Schemas are made
from both when they are asked for. Nothing of this is loaded to print: the shapes are types, and are checked by mypy
and by the tests.
"""
