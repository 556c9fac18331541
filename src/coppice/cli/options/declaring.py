"""Derive Typer options from the fields of a Struct or a dataclass, and build the record from them.

Typer reads the options of a command from its signature. A command takes a record instead of each option of it, and
:func:`with_options` says which of its fields the command offers, and where they stand in its help::

    @with_options("topology boxes ... rates settings as_json")
    def show(where: TopologyOptions, *, name: NameOption = None, as_json: JsonOption = False) -> None:
        topology = where.load()

The fields of a dataclass are annotated for Typer; those of a Struct are described by :func:`coppice.options.option`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from coppice.cli.options.completion import collective_names, model_names

_TYPES: Mapping[str, type] = {"N": int, "X": float, "yes|no": bool, "FILE": Path}
"""Types that Typer reads itself, by what stands for their values; the others come as text."""

_COMPLETIONS = {"model": model_names, "collective": collective_names}
"""What a shell offers for an option of a name."""


@dataclass(frozen=True, kw_only=True)
class _TakenRecord:
    """A record that a command takes in place of its fields."""

    parameters: Mapping[str, inspect.Parameter]
    make: Callable[[dict[str, Any]], Any]  # From values of the fields that the command offers


def parameter_of(option: Any) -> inspect.Parameter:
    """An option of a record as Typer takes it.

    Args:
        option: An :class:`coppice.options.Option`.
    """
    kind = _TYPES.get(option.kind.metavar, str)
    limits = {"min": option.low, "max": option.high} if kind in (int, float) else {}
    declared = typer.Option(
        *option.flags,
        metavar=None if kind is bool else option.metavar,
        help=option.help,
        autocompletion=_COMPLETIONS.get(option.name),
        **limits,
    )
    open_ended = option.default is None and not option.needed
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.needed else option.default,
        annotation=Annotated[kind | None if open_ended else kind, declared],
    )


def with_options(
    order: str, *, defaults: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the options of the records that a command takes to Typer.

    A parameter whose type is a record stands for those of its fields that ``order`` names (its own name is all of
    them). What the command declares
    itself takes precedence over a field of that name, which then keeps its default.

    Args:
        order: Names of parameters and fields in the order of the help; ``...`` is all other parameters of the command.
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
        own = {
            name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
        }
        groups = {}
        for name in [*own]:
            group = _table(tables[name]) if name in tables else _record(hints[name])
            if group is not None:
                groups[name] = group
                del own[name]
        parts = {
            name: [each for each in group.parameters if each not in own] for name, group in groups.items()
        }
        declared = own | {each: groups[name].parameters[each] for name in groups for each in parts[name]}
        for name, value in (defaults or {}).items():
            declared[name] = declared[name].replace(default=value)
        named = order.split()
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
            made = {
                name: group.make({each: given.pop(each) for each in parts[name] if each in given})
                for name, group in groups.items()
            }
            command(**made, **given)

        run.__dict__["__signature__"] = inspect.Signature([declared[name] for name in names])
        run.__annotations__ = {name: declared[name].annotation for name in names}
        return run

    return decorate


def _record(hint: Any) -> _TakenRecord | None:
    """The fields of a record; None for any other type."""
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint, include_extras=True)
        parameters = {
            each.name: inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if each.default is MISSING else each.default,
                annotation=hints[each.name],
            )
            for each in fields(hint)
        }
        return _TakenRecord(parameters=parameters, make=lambda values: hint(**values))
    if not hasattr(hint, "__struct_fields__"):
        return None
    from coppice.options import options_of, recorded

    options = options_of(hint)
    inner = {name: group for name, each in options.items() if (group := _record(each.type)) is not None}
    found: dict[str, inspect.Parameter] = {}
    for name, option in options.items():
        found |= inner[name].parameters if name in inner else {name: parameter_of(option)}

    def make(values: dict[str, Any]) -> Any:
        for name, group in inner.items():
            values[name] = group.make({each: values.pop(each) for each in group.parameters if each in values})
        return recorded(hint, values, owner="the command")

    return _TakenRecord(parameters=found, make=make)


def _table(options: Mapping[str, Any]) -> _TakenRecord:
    """Options of several records, whose values the command gets by name."""
    return _TakenRecord(
        parameters={name: parameter_of(option) for name, option in options.items()},
        make=lambda values: {name: value for name, value in values.items() if value not in (None, False)},
    )
