"""Functions and constructors that are called with the fields of a record of options, and get the record."""

from __future__ import annotations

import inspect
import os
import re
import textwrap
import typing
import warnings
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from coppice.arguments import arguments_of
from coppice.options import TEXTS, argument, option, options_of  # noqa: F401 (the examples' names)

_Record = TypeVar("_Record", bound=Struct)
_Self = TypeVar("_Self")
_Result = TypeVar("_Result")
_Taken = ParamSpec("_Taken")


class CheckedRecord(Struct, frozen=True):
    """A record whose values are held to their limits when it is made."""

    def __post_init__(self) -> None:
        """Check the limits."""
        for each in options_of(type(self)).values():
            each.check(getattr(self, each.name))


def taking(
    record: Callable[_Taken, _Record],
) -> Callable[[Callable[[_Self, _Record], None]], Callable[Concatenate[_Self, _Taken], None]]:
    """A constructor that is called with the fields of a record by name, and gets the record.

    Args:
        record: A class of settings.

    Examples:
        >>> class Example(CheckedRecord, frozen=True):
        ...     size: typing.Annotated[int, option("How large.", ge=1)] = 1
        >>> class Thing:
        ...     @taking(Example)
        ...     def __init__(self, settings: Example) -> None:
        ...         self.size = settings.size
        >>> Thing(size=3).size
        3
        >>> Thing(size=0)
        Traceback (most recent call last):
        coppice.errors.InputError: expected `size` of 1 or more, found 0.
        >>> Thing(length=3)
        Traceback (most recent call last):
        coppice.errors.InputError: Thing has no argument `length`: its arguments are size.
    """
    hints = cache(lambda: typing.get_type_hints(record))
    signature = inspect.signature(record)

    def decorate(init: Callable[[_Self, _Record], None]) -> Callable[Concatenate[_Self, _Taken], None]:
        @wraps(init)
        def call(self: _Self, /, *args: _Taken.args, **kwargs: _Taken.kwargs) -> None:
            bound = arguments_of(call, signature, hints(), args, kwargs)
            init(self, record(*bound.args, **bound.kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [
            each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
        ]
        call.__dict__["__signature__"] = inspect.Signature([own, *parameters])
        return call

    return decorate


def verb(
    call: Callable[_Taken, _Record],
) -> Callable[[Callable[[_Record], _Result]], Callable[_Taken, _Result]]:
    """A public function that is called with the fields of a record, and gets the record.

    Its signature, the check of what is given and the arguments in its documentation come from the record.

    Args:
        call: A class of options; fields that are not keyword-only are given by place as well.

    Examples:
        >>> class RepeatCall(Struct):
        ...     word: typing.Annotated[str, argument("What is repeated.")]
        ...     times: typing.Annotated[int, option("How often.", ge=0)] = 2
        >>> @verb(RepeatCall)
        ... def repeat(asked: RepeatCall) -> str:
        ...     "Repeat a word."
        ...     return asked.word * asked.times
        >>> repeat("ab"), repeat("ab", times=1)
        ('abab', 'ab')
        >>> repeat("ab", times="2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coppice.errors.InputError: expected `times` of repeat to be an int, found '2' (str): see help(...repeat).
        >>> print(repeat.__doc__)
        Repeat a word.
        <BLANKLINE>
        Args:
            word: What is repeated.
            times: How often.
    """
    hints = cache(lambda: typing.get_type_hints(call))
    signature = inspect.signature(call)

    def decorate(function: Callable[[_Record], _Result]) -> Callable[_Taken, _Result]:
        @wraps(function)
        def run(*args: _Taken.args, **kwargs: _Taken.kwargs) -> _Result:
            given = _single_texts(_with_present_names(kwargs, call, signature), call)
            bound = arguments_of(run, signature, hints(), args, given)
            made = call(*bound.args, **bound.kwargs)
            for each in options_of(type(made)).values():
                each.check(getattr(made, each.name))
            return function(made)

        plain = [each.replace(annotation=hints()[name]) for name, each in signature.parameters.items()]
        run.__dict__["__signature__"] = signature.replace(parameters=plain)
        run.__doc__ = _with_arguments(inspect.getdoc(function) or "", call)
        return run

    return decorate


def _single_texts(given: Mapping[str, Any], record: Any) -> Mapping[str, Any]:
    """Arguments, with one text or path where several are taken as a list of it."""
    several = {name for name, each in options_of(record).items() if each.kind is TEXTS}
    found = {name: given[name] for name in several & given.keys()}
    single = {
        name: [os.fspath(value)] for name, value in found.items() if isinstance(value, str | os.PathLike)
    }
    return {**given, **single} if single else given


def _with_present_names(
    given: Mapping[str, Any], record: Any, signature: inspect.Signature
) -> Mapping[str, Any]:
    """Arguments by their names in Python, where they are given by those of the command line.

    A warning names the new name of each that had another one.
    """
    if given.keys() <= signature.parameters.keys():
        return given
    former = {
        flag.flag: (each.name, flag.value) for each in options_of(record).values() for flag in each.former
    }
    flags = {flag: each.name for each in options_of(record).values() for flag in each.flags}
    found = {name: value for name, value in given.items() if name in signature.parameters}
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if name in signature.parameters:
            continue
        if flag in flags and flags[flag] not in given:  # A name of the command line
            found[flags[flag]] = value
            continue
        present, template = former.get(flag, (name, "{}"))
        if present != name:
            warnings.warn(f"`{name}` is now `{present}`.", FutureWarning, stacklevel=3)
        value = value if template.strip("+") == "{}" else template.strip("+").format(value)
        joined = [each for each in (found.get(present), value) if each not in (None, "none")]
        found[present] = "+".join(joined) or "none" if template.startswith("+") else value
    return found


def _with_arguments(text: str, record: Any) -> str:
    """A documentation with the arguments that the fields of a record are, before its other parts."""
    lines = ["Args:"]
    for name, each in options_of(record).items():
        if each.help:
            words = re.sub(r"--([a-z][a-z-]*)", lambda found: f"`{found[1].replace('-', '_')}`", each.help)
            lines += textwrap.wrap(
                f"{name}: {words}", 112, initial_indent="    ", subsequent_indent="        "
            )
    head, mark, rest = text.partition("\n\nRaises:")
    if not mark:
        head, mark, rest = text.partition("\n\nExamples:")
    return "\n".join([head, "", *lines]) + mark + rest
