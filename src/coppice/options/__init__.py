"""Options as records: one Struct defines the options of a command, a format or a native call.

A field has its type, its default and, in :func:`option`, its meaning and limits. Flags of commands, the check of what
Python gives, the documentation and the settings of native code are made from that.
"""

from __future__ import annotations

import enum
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import fields

from coppice.arguments import expect_one_of, expect_range
from coppice.errors import InputError
from coppice.text import parse_size, parse_sizes, suggestion

_Record = TypeVar("_Record", bound=Struct)


def option(
    help: str,  # noqa: A002 (what every command line calls it)
    *flags: str,
    metavar: str | None = None,
    choices: Iterable[str] = (),
    was: Iterable[str] = (),
    **limits: Any,
) -> Meta:
    """What a field means, for its annotation.

    Args:
        help: What it means.
        flags: Its names on the command line; none: two dashes and its name.
        metavar: What stands for the value in a help; None is told by the type.
        choices: All values that it may have.
        was: Names that it had, which are still read: a flag, perhaps with what its value (``{}``) is now, as in
            ``"--steps steps={}"``; ``"--order +{}"`` joins it to the other values with a plus.
        limits: ``ge``, ``gt``, ``le``, ``lt``, as msgspec takes them.
    """
    extra = {"flags": flags, "metavar": metavar, "choices": tuple(choices), "was": tuple(was)}
    return Meta(description=help, extra=extra, **limits)


def argument(help: str, *, metavar: str | None = None) -> Meta:  # noqa: A002 (as in option)
    """What a field means that a command line takes by its place, for its annotation.

    Args:
        help: What it means.
        metavar: What stands for the value in a help; None is the field's name.
    """
    return Meta(description=help, extra={"metavar": metavar, "positional": True})


class OptionKind(NamedTuple):
    """What the value of an option is; every kind is also taken as text, in the words of the command line."""

    metavar: str  # What stands for the value in a help
    read: Callable[[Option, Any], Any]  # The value that is meant by what a caller gives


class FormerFlag(NamedTuple):
    """A name that an option had on the command line."""

    flag: str
    value: str  # What its value is now, ``{}`` being what was given
    takes_value: bool = True


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option: a field of a record."""

    name: str
    type: Any  # Its type without None and annotations
    kind: OptionKind
    help: str = ""
    default: Any = None
    needed: bool = False  # It has no default
    positional: bool = False  # A command line takes it by its place
    flags: tuple[str, ...] = ()
    metavar: str = ""
    choices: tuple[str, ...] = ()
    low: float | None = None  # Least value
    above: float | None = None  # What every value is above
    high: float | None = None  # Largest value
    former: tuple[FormerFlag, ...] = ()  # Names that it had

    def value(self, given: Any) -> Any:
        """The value that is meant by what a caller gives: a value of the kind, or its text.

        Examples:
            >>> class Example(Struct):
            ...     sizes: Sizes = ()
            ...     whole: bool = True
            >>> options_of(Example)["sizes"].value("1K:4K"), options_of(Example)["whole"].value("no")
            ((1024, 2048, 4096), False)
        """
        value = self.kind.read(self, given)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a number out of the limits."""
        if isinstance(value, int | float):
            expect_range(self.name, value, low=self.low, high=self.high, above=self.above)


def _text(option: Option, given: Any) -> Any:
    kinds = typing.get_args(option.type) or (option.type,)
    return _of_type(tuple(kinds), option, given, "text")


def _choice(option: Option, given: Any) -> Any:
    if isinstance(given, option.type) and not isinstance(given, str):
        return given
    if hasattr(option.type, "named"):
        return option.type.named(given)
    expect_one_of(option.name, given, option.choices)
    return option.type(given)


def _number(option: Option, given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if not (isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10):
        raise InputError(f"expected {option.name} to be a whole number ({option.help}), found {given!r}.")
    return int(given)


def _real(option: Option, given: Any) -> float:
    try:
        if isinstance(given, bool):
            raise TypeError
        return float(given)
    except (TypeError, ValueError):
        raise InputError(f"expected {option.name} to be a number ({option.help}), found {given!r}.") from None


def _flag(option: Option, given: Any) -> bool:
    if given not in (True, False, "yes", "no"):
        raise InputError(f"expected {option.name} to be yes or no, found {given!r}.")
    return given in (True, "yes")


def _names(option: Option, given: Any) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else _items(option, given, "names")
    return tuple(_of_type((str,), option, part, "names").strip() for part in parts)


def _texts(option: Option, given: Any) -> list[str]:
    words = [given] if isinstance(given, str) else _items(option, given, "texts")
    return [_of_type((str,), option, word, "texts") for word in words]


def _file(option: Option, given: Any) -> Path:
    return Path(_of_type((str, os.PathLike), option, given, "the name of a file"))


def _sizes(option: Option, given: Any) -> Any:
    """One size in bytes, several in rising order, or a range: its text, or the sizes in it."""
    name, single = option.name, option.kind is SIZE
    if isinstance(given, str):
        if single:
            return parse_size(given, option=f"`{name}`")
        return given if option.kind is SIZE_RANGE else parse_sizes(given, option=name)
    sizes = [given] if single or isinstance(given, int) else _items(option, given, "sizes in bytes")
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise InputError(f"expected {name} in bytes, or as text such as 64K or 1M:1G, found {given!r}.")
    return given if single else tuple(sorted(set(sizes)))


def _of_type(kinds: tuple[type, ...], option: Option, given: Any, words: str) -> Any:
    if not isinstance(given, kinds):
        raise InputError(f"expected {option.name} to be {words}, found {given!r}.")
    return given


def _keyed(option: Option, given: Any) -> Any:
    if isinstance(given, option.type):
        return given
    flag = option.flags[0]
    if not isinstance(given, Mapping):
        given = parse_settings([given] if isinstance(given, str) else given, option=flag)
    return recorded(option.type, given, owner=flag)


def _settings(option: Option, given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else parse_settings(given, option=option.flags[0])


def _record(option: Option, given: Any) -> Any:
    return _of_type((option.type,), option, given, f"{option.type.__name__}(...)")


def _items(option: Option, given: Any, words: str) -> list[Any]:
    if not isinstance(given, Iterable):
        raise InputError(f"expected {option.name} to be {words}, found {given!r}.")
    return list(given)


TEXT = OptionKind("TEXT", _text)
CHOICE = OptionKind("TEXT", _choice)
NUMBER = OptionKind("N", _number)
REAL = OptionKind("X", _real)
FLAG = OptionKind("yes|no", _flag)
NAMES = OptionKind("A,B,...", _names)
TEXTS = OptionKind("TEXT", _texts)
FILE = OptionKind("FILE", _file)
RECORD = OptionKind("", _record)
KEYED = OptionKind("KEY=VALUE", _keyed)
"""A record of options on the command line: KEY=VALUE for each field, in one option that may be repeated."""

SIZE = OptionKind("SIZE", _sizes)
SIZES = OptionKind("SIZES", _sizes)
SIZE_RANGE = OptionKind("SIZES", _sizes)

SETTINGS = OptionKind("KEY=VALUE", _settings)
ANYTHING = OptionKind("TEXT", lambda _, given: given)
"""What a function checks by itself."""

Settings = typing.Annotated[Mapping[str, Any], SETTINGS]
Names = typing.Annotated[typing.Sequence[str], NAMES]
Size = typing.Annotated[int, SIZE]
Sizes = typing.Annotated[typing.Sequence[int], SIZES]
SizeRange = typing.Annotated[str | typing.Sequence[int], SIZE_RANGE]
"""Messages from one size to another: as LOW:HIGH, ``all``, a list, or the sizes in bytes."""
AnySizes = typing.Annotated[str | int | typing.Sequence[int | str], ANYTHING]
"""A size or several: in bytes, as text, or as a range FIRST:LAST[:FACTOR]."""

_PLAIN: Mapping[Any, OptionKind] = {
    str: TEXT,
    int: NUMBER,
    float: REAL,
    bool: FLAG,
    Path: FILE,
    list[str]: TEXTS,
}


@cache
def options_of(record: type[Struct]) -> Mapping[str, Option]:
    """The options of a record by name, in the order of its fields."""
    hints = typing.get_type_hints(record, include_extras=True)
    return types.MappingProxyType(
        {
            field.name: option_of(field.name, hints[field.name], field.default, needed=field.required)
            for field in fields(record)
        }
    )


def option_of(name: str, hint: Any, default: Any = None, *, needed: bool = False) -> Option:
    """The option that an annotated field or parameter is.

    Args:
        name: Its name.
        hint: Its annotation.
        default: Its value where nothing is given.
        needed: It has no default.
    """
    plain, notes = _parts(hint)
    meta = next((note for note in notes if isinstance(note, Meta)), Meta())
    extra = meta.extra or {}
    enumerated = isinstance(plain, type) and issubclass(plain, enum.Enum)
    choices = extra.get("choices") or (tuple(plain) if enumerated else ())
    kind = next((note for note in notes if isinstance(note, OptionKind)), None)
    nested = isinstance(plain, type) and issubclass(plain, Struct)
    record_kind = KEYED if meta.description else RECORD
    kind = kind or (record_kind if nested else CHOICE if choices else _PLAIN.get(plain, TEXT))
    positional = extra.get("positional", False)
    metavar = extra.get("metavar")
    return Option(
        name=name,
        type=plain,
        kind=kind,
        help=_keyed_help(meta.description or "", plain) if kind is KEYED else meta.description or "",
        default=None if needed else default,
        needed=needed,
        positional=positional,
        flags=extra.get("flags") or (f"--{name.replace('_', '-')}",),
        metavar=metavar or ("" if positional else "|".join(choices) if choices else kind.metavar),
        choices=choices,
        low=meta.ge,
        above=meta.gt,
        high=meta.le,
        former=(*map(_former, extra.get("was", ())), *(_former_keys(plain) if kind is KEYED else ())),
    )


def _keyed_help(help: str, record: type[Struct]) -> str:  # noqa: A002 (as in option)
    keys = (
        f"{name} ({each.help[:1].lower()}{each.help[1:].rstrip('.')})"
        for name, each in options_of(record).items()
    )
    return f"{help.rstrip('.')}: {', '.join(keys)}; may be repeated."


def _former(text: str) -> FormerFlag:
    flag, _, value = text.partition(" ")
    return FormerFlag(flag, value or "{}", takes_value=not value or "{}" in value)


def _former_keys(record: type[Struct]) -> typing.Iterator[FormerFlag]:
    """The flags that fields of a record had before one option took all of them."""
    for name, each in options_of(record).items():
        plain = each.kind is not FLAG
        yield from each.former or (
            FormerFlag(flag, f"{name}={'{}' if plain else 'yes'}", plain) for flag in each.flags
        )


def _parts(hint: Any) -> tuple[Any, list[Any]]:
    """A type without None and annotations, and the annotations, the outer ones first."""
    notes: list[Any] = []
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint, *own = typing.get_args(hint)
            notes += own
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            inner = [each for each in typing.get_args(hint) if each is not types.NoneType]
            if len(inner) == len(typing.get_args(hint)):
                return hint, notes
            hint = inner[0] if len(inner) == 1 else typing.Union[tuple(inner)]  # noqa: UP007 (made at run time)
        else:
            return hint, notes


def recorded(record: type[_Record], values: Mapping[str, Any], *, owner: str) -> _Record:
    """The record of options that a caller gave by name, as values or as text; None stands for one not given.

    Args:
        record: What there is.
        values: What was given.
        owner: What takes the options, for messages.

    Raises:
        InputError: If there is no such option, or a value is not of its kind or out of its limits.

    Examples:
        >>> class Example(Struct):
        ...     size: Size = 0
        >>> recorded(Example, {"size": "1K"}, owner="the example")
        Example(size=1024)
        >>> recorded(Example, {"sizes": "1K"}, owner="the example")
        Traceback (most recent call last):
        coppice.errors.InputError: the example has no option 'sizes': did you mean 'size'?
    """
    known = options_of(record)
    found = {}
    for name, given in values.items():
        if name not in known:
            hint = suggestion(name, known) if known else "it has none."
            raise InputError(f"{owner} has no option {name!r}: {hint}")
        if given is not None:
            found[name] = known[name].value(given)
    return record(**found)


def parse_settings(settings: Sequence[str], *, option: str = "--set") -> dict[str, str]:
    """Parse ``KEY=VALUE`` texts to a dictionary.

    Args:
        settings: The texts.
        option: The option that they were given to, for messages.

    Raises:
        InputError: If a text has no ``=`` or a key repeats.

    Examples:
        >>> parse_settings(["dims=4x4", "fabric=rail"])
        {'dims': '4x4', 'fabric': 'rail'}
    """
    options: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(
                f"expected {option} KEY=VALUE, found {setting!r}: write both, with an equals sign between them."
            )
        if key in options:
            raise InputError(f"{option} gives {key} twice ({options[key]!r} and {value!r}): keep one.")
        options[key] = value.strip()
    return options
