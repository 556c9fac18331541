"""Derive the command line of a command from annotated parameters and records of options, and build the records.

A command describes its parameters by :func:`coppice.options.option` and :func:`coppice.options.argument`, and takes
records (Structs) for options that others share. :func:`with_options` makes the signature that Typer reads from both::

    @with_options("topology boxes ... rates settings as_json")
    def show(where: TopologyOptions, *, name: NameOption = None, as_json: JsonOption = False) -> None:
        topology = where.load()

The shell completes values by functions that load no more than the names that they list.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from msgspec import Struct

from coppice.collectives import Collective
from coppice.options import KEYED, RECORD, SETTINGS, Option, option_of, options_of, recorded


def collective_names(incomplete: str) -> list[str]:
    """Complete a collective; of a comma-separated list the last one.

    Examples:
        >>> collective_names("all_r"), collective_names("broadcast,all_g")
        (['all_reduce'], ['broadcast,all_gather'])
    """
    return _last_of(incomplete, list(Collective))


def algorithm_names(incomplete: str) -> list[str]:
    """Complete an algorithm; of a comma-separated list the last one."""
    from coppice.planners.choice import listed

    return _last_of(incomplete, sorted({entry.name for entry in listed()}))


def preset_names(incomplete: str) -> list[str]:
    """Complete a preset; without a match the shell completes files."""
    from coppice.topology.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """Complete a time model."""
    from coppice.simulation.models import named_models

    return [name for name in named_models() if name.startswith(incomplete)]


def _last_of(incomplete: str, names: list[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


_COMPLETIONS = {
    "--model": model_names,
    "--collective": collective_names,
    "--algorithm": algorithm_names,
    "--algorithms": algorithm_names,
    "--topology": preset_names,
}
"""What a shell offers for an option, or for an argument of the name."""


def parameter_of(option: Option) -> inspect.Parameter:
    """An option as Typer takes it."""
    enumerated = isinstance(option.type, type) and issubclass(option.type, enum.Enum)
    if option.kind in (KEYED, SETTINGS):
        option = replace(option, type=list[str], default=None)
    direct = enumerated or option.type in (bool, int, float, Path, list[str], list[Path])
    kind = option.type if direct else str
    if not direct and not isinstance(option.default, str):  # what is no text is not given: the record has it
        option = replace(option, default=None)
    numeric = kind in (int, float)
    common: dict[str, Any] = {
        "metavar": None if kind is bool else option.metavar or None,
        "help": option.help,
        "autocompletion": next((_COMPLETIONS[each] for each in option.flags if each in _COMPLETIONS), None),
        "parser": getattr(kind, "named", None),
        "min": option.low if numeric else None,
        "max": option.high if numeric else None,
    }
    # What is not given has no default to show: None stands for that.
    open_ended = option.default is None and not option.needed
    declared = (
        typer.Argument(**common, show_default=not open_ended)
        if option.positional
        else typer.Option(*option.flags, **common)
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.needed else option.default,
        annotation=Annotated[kind | None if open_ended else kind, declared],
    )


@dataclass(frozen=True, kw_only=True)
class _TakenRecord:
    """A record that a command takes in place of its fields."""

    options: Mapping[str, Option]  # Its fields, and those of records in it
    parameters: Mapping[str, inspect.Parameter]
    make: Callable[[dict[str, Any]], Any]  # From values of the fields that the command offers


def with_options(
    order: str = "...", *, defaults: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the parameters of a command, and the options of the records that it takes, to Typer.

    A parameter whose type is a record stands for those of its fields that ``order`` names (its own name is all of
    them). What the command declares itself takes precedence over a field of that name, which then keeps its default.

    Args:
        order: Names of parameters and fields in the order of the help; ``...`` is all other parameters of the command,
            and ``-name`` leaves a field out.
        defaults: Values that fields have on the command line where nothing is given, instead of their own.
        tables: Options by name for parameters of the command that take a dictionary of what was given.

    Raises:
        TypeError: If the command has a parameter that the order leaves out.

    Examples:
        >>> from coppice.cli.options.inputs import TopologyOptions
        >>> @with_options("topology ... boxes")
        ... def command(where: TopologyOptions, *, size: str = "1M") -> None:
        ...     print(where.topology, where.boxes, where.rates, size)
        >>> list(inspect.signature(command).parameters)
        ['topology', 'size', 'boxes']
        >>> command(topology="dgx-a100", boxes=2, size="1K")
        dgx-a100 2 None 1K
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own: dict[str, inspect.Parameter] = {}
        options: dict[str, Option] = {}
        groups: dict[str, _TakenRecord] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            if name in tables:
                groups[name] = _table(tables[name])
            elif _is_record(hints[name]):
                groups[name] = _record(hints[name])
            elif (option := _own(parameter, hints[name])).help:
                options[name] = option
                own[name] = parameter_of(option)
            else:
                own[name] = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        left_out = {word[1:] for word in order.split() if word.startswith("-")}
        parts: dict[str, list[str]] = {}
        declared = dict(own)
        for name, group in groups.items():
            parts[name] = [each for each in group.parameters if each not in declared and each not in left_out]
            declared |= {each: group.parameters[each] for each in parts[name]}
        for name, value in (defaults or {}).items():
            declared[name] = declared[name].replace(default=value)
        named = [word for word in order.split() if not word.startswith("-")]
        others = [name for name in own if name not in named]
        spread = (others if word == "..." else parts.get(word, [word]) for word in named)
        names = [*dict.fromkeys(name for words in spread for name in words)]
        if others and "..." not in named:
            raise TypeError(
                f"expected all parameters of {command.__name__} in its order, found no {', '.join(others)}."
            )
        parts = {name: [each for each in part if each in names] for name, part in parts.items()}

        @wraps(command)
        def run(*args: Any, **given: Any) -> None:
            given |= dict(zip(names, args, strict=False))
            for name, option in options.items():
                if option.kind is KEYED:
                    given[name] = option.value(given[name]) if given.get(name) else option.default
            made = {
                name: group.make({each: given.pop(each) for each in parts[name] if each in given})
                for name, group in groups.items()
            }
            command(**made, **given)

        run.__dict__["__signature__"] = inspect.Signature([declared[name] for name in names])
        run.__annotations__ = {name: declared[name].annotation for name in names}
        every = options | {name: each for group in groups.values() for name, each in group.options.items()}
        run.__dict__["former_flags"] = {
            each.flag: (every[name].flags, each)
            for name in names
            if name in every
            for each in every[name].former
        }
        return run

    return decorate


def _own(parameter: inspect.Parameter, hint: Any) -> Option:
    """A parameter of the command itself; a record in one option has the record's defaults."""
    needed = parameter.default is inspect.Parameter.empty
    made = option_of(parameter.name, hint, parameter.default, needed=needed)
    return replace(made, needed=False, default=made.type()) if made.kind is KEYED else made


def _record(record: type[Struct]) -> _TakenRecord:
    """The fields of a record, and of records in it."""
    fields = options_of(record)
    inner = {name: _record(each.type) for name, each in fields.items() if each.kind is RECORD}
    options: dict[str, Option] = {}
    for name, option in fields.items():
        options |= inner[name].options if name in inner else {name: option}

    def make(values: dict[str, Any]) -> Any:
        for name, group in inner.items():
            values[name] = group.make({each: values.pop(each) for each in group.options if each in values})
        return recorded(record, values, owner="the command")

    return _taken(options, make)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _table(options: Mapping[str, Option]) -> _TakenRecord:
    """Options of several records, whose values the command gets by name."""
    return _taken(
        options, lambda values: {name: value for name, value in values.items() if value not in (None, False)}
    )


def _taken(options: Mapping[str, Option], make: Callable[[dict[str, Any]], Any]) -> _TakenRecord:
    parameters = {name: parameter_of(option) for name, option in options.items()}
    return _TakenRecord(options=options, parameters=parameters, make=make)
