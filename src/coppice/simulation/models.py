"""Named time models of libraries and machines, with the source of every figure, and model files.

One model stands behind a time wherever it is shown: plans, simulations, comparisons, exports and reports take the same
one by default, and name it.
"""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from coppice.arguments import checked
from coppice.decoding import decodable, decode_json
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.simulation.model import Model
from coppice.version import __version__

FORMAT = "coppice-model"


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A time model with a description."""

    model: Model  # The figures
    about: str  # What it is a model of, in words
    sources: dict[str, str]  # Where the figures come from, by their names


class _ModelsFile(msgspec.Struct, frozen=True):
    """The data file."""

    default: str
    models: dict[str, dict[str, Any]]


def named_models() -> dict[str, NamedModel]:
    """All named models, the default first.

    >>> list(named_models())
    ['nccl-2.30', 'msccl', 'mpi-tcp', 'shm', 'ideal']
    """
    return dict(_named())


@checked
def model_of(name: Model | str | os.PathLike[str] | None = None) -> Model:
    """Look up a model by name, or read it from a file; None is the default.

    Args:
        name: A name of :func:`named_models`, a file of the format ``coppice-model``, or a model as it is.

    Raises:
        InputError: If there is no such model, or the file is none.

    Examples:
        >>> model_of("ideal").overhead_us
        1.0
        >>> model_of("nccl")
        Traceback (most recent call last):
        ...
        coppice.errors.InputError: expected a model of nccl-2.30, msccl, mpi-tcp, shm, ideal, or a file, found 'nccl'.
    """
    if name is None:
        return DEFAULT_MODEL
    if isinstance(name, Model):
        return name
    if isinstance(name, str) and name in _named():
        return _named()[name].model
    if isinstance(name, str) and Path(name).suffix != ".json" and not Path(name).exists():
        raise InputError(f"expected a model of {', '.join(_named())}, or a file, found {name!r}.")
    return _from_file(name)


def model_bytes(model: Model, *, about: str = "", sources: dict[str, str] | None = None) -> bytes:
    r"""Encode a model as a file that :func:`model_of` reads.

    Args:
        about: What it is a model of.

    Examples:
        >>> model_bytes(Model(name="mine"))[:40]
        b'{\n  "format": "coppice-model",\n  "versio'
    """
    plain = asdict(Model())
    changed = {key: value for key, value in asdict(model).items() if key == "name" or value != plain[key]}
    head = {"format": FORMAT, "version": 1, "provenance": f"coppice {__version__}", "about": about}
    text = msgspec.json.encode({**head, **changed, "sources": sources or {}})
    return msgspec.json.format(text, indent=2) + b"\n"


_FIELDS = {field.name for field in fields(Model)}


def _made(values: dict[str, Any], where: str) -> NamedModel:
    """A model from JSON values."""
    unknown = sorted(set(values) - _FIELDS - {"about", "sources"})
    if unknown:
        raise InputError(f"{where}: expected fields of {', '.join(sorted(_FIELDS))}, found {unknown[0]!r}.")
    try:
        return msgspec.convert(
            {
                "model": {key: value for key, value in values.items() if key in _FIELDS},
                "about": values.get("about", ""),
                "sources": values.get("sources", {}),
            },
            decodable(NamedModel),
        )
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{where}: {error}") from None


def _from_file(path: str | os.PathLike[str]) -> Model:
    """The model in a file."""
    data = read_bytes(path)
    words = f"expected {path} to be a model in JSON, found something else"
    values = decode_json(data, dict[str, Any], lambda fault: f"{words} ({fault}).")
    if (values.pop("format", None), values.pop("version", None)) != (FORMAT, 1):
        raise InputError(f"expected {path} to be of the format {FORMAT!r}, version 1, found something else.")
    values.pop("provenance", None)
    return _made(values, str(path)).model


@cache
def _named() -> dict[str, NamedModel]:
    data = files("coppice.simulation").joinpath("data/models.json").read_bytes()
    table = msgspec.json.decode(data, type=decodable(_ModelsFile))
    names = sorted(table.models, key=lambda name: name != table.default)
    return {name: _made({"name": name, **table.models[name]}, f"model {name}") for name in names}


DEFAULT_MODEL = next(iter(_named().values())).model
"""A GPU library of the make of NCCL."""
