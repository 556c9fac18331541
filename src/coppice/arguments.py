"""Check arguments of public functions by their annotations, with one-sentence errors."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar

from coppice.errors import InputError
from coppice.text import nearest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_SEQUENCES = (collections.abc.Sequence, collections.abc.Iterable, tuple, list)
_NUMBERS: dict[object, tuple[type, ...]] = {int: (int,), float: (int, float), Fraction: (int, Fraction)}


def _of_numpy(hint: object) -> tuple[type[Any], ...]:
    """NumPy's numbers that stand for others; it is not loaded for this, as without it there are none."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ()
    return (numpy.integer, numpy.floating) if hint is float else (numpy.integer,)


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator that refuses arguments of other types than annotated.

    Containers are looked at one level deep, arrays not at all; a bool is no number, and an integer of NumPy becomes
    an int. Annotations have to name types that the module of the function knows when it is first called.

    Args:
        function: The function.

    Examples:
        >>> @checked
        ... def repeat(word: str, *, times: int = 1) -> str:
        ...     return word * times
        >>> repeat("ab", times=2)
        'abab'
        >>> repeat("ab", times="2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coppice.errors.InputError: expected `times` of repeat to be an int, found '2' (str): see help(...repeat).
        >>> repeat("ab", time=2)
        Traceback (most recent call last):
        coppice.errors.InputError: repeat has no argument `time`: did you mean `times`?
    """
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return typing.get_type_hints(function, include_extras=False)

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        bound = arguments_of(call, signature, hints(), args, kwargs)
        return function(*bound.args, **bound.kwargs)

    return call


def also_named(
    **names: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorator that takes arguments by second names as well, those of the command line.

    Args:
        names: The argument that each second name stands for.

    Examples:
        >>> @also_named(num_ranks="ranks")
        ... def shares(ranks: int) -> float:
        ...     return 1 / ranks
        >>> shares(num_ranks=4)
        0.25
        >>> shares(2, num_ranks=4)
        Traceback (most recent call last):
        coppice.errors.InputError: shares takes `num_ranks` as another name of `ranks`: give one of them.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        places = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            for second, name in names.items():
                if second in kwargs:
                    if name in kwargs or places.index(name) < len(args):
                        raise InputError(
                            f"{function.__name__} takes `{second}` as another name of `{name}`: give one of them."
                        )
                    kwargs[name] = kwargs.pop(second)
            return function(*args, **kwargs)

        return call

    return decorate


def arguments_of(
    function: Callable[..., Any],  # What people call
    signature: inspect.Signature,  # Its arguments
    hints: typing.Mapping[str, Any],  # Their types by name
    args: typing.Sequence[Any],
    kwargs: typing.Mapping[str, Any],
) -> inspect.BoundArguments:
    """The arguments of a call by name, an integer of NumPy as an int.

    Raises:
        InputError: If an argument is missing, unknown, or of another type.
    """
    name = function.__qualname__.split(".")[-2 if function.__name__ == "__init__" else -1]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(_unbound(name, signature, kwargs, str(error))) from None
    for key, found in bound.arguments.items():
        value = _listed(found, hints.get(key))
        if value is not found:
            bound.arguments[key] = value
        kind = signature.parameters[key].kind
        if kind is inspect.Parameter.VAR_KEYWORD or kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        if key in hints and not _fits(value, hints[key]):
            raise InputError(
                f"expected `{key}` of {name} to be {_words(hints[key])}, found {shown(value)}: "
                f"see help({_home(name, function)}.{name})."
            )
        if isinstance(value, _of_numpy(int)):
            bound.arguments[key] = int(value)
    return bound


def expect_range(
    name: str,  # Of the argument
    value: float,
    *,
    low: float | None = None,  # Least value
    high: float | None = None,  # Largest value
    above: float | None = None,  # What it has to be above
) -> None:
    """Refuse a number that is out of its range.

    Raises:
        InputError: If it is, or if it is no number at all (NaN).

    Examples:
        >>> expect_range("tries", 0, low=1)
        Traceback (most recent call last):
        coppice.errors.InputError: expected `tries` of 1 or more, found 0.
        >>> expect_range("drop", 1.5, low=0, high=1)
        Traceback (most recent call last):
        coppice.errors.InputError: expected `drop` of 0 to 1, found 1.5.
    """
    if (low is None or value >= low) and (high is None or value <= high) and (above is None or value > above):
        return
    if above is not None:
        words = f"above {above}" if high is None else f"above {above} and up to {high}"
    elif low is None:
        words = f"of at most {high}"
    else:
        words = f"of {low} or more" if high is None else f"of {low} to {high}"
    raise InputError(f"expected `{name}` {words}, found {value}.")


def expect_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse what is none of the words that an argument may be.

    Raises:
        InputError: If it is none.

    Examples:
        >>> expect_one_of("op", "max", ("sum", "avg"))
        Traceback (most recent call last):
        coppice.errors.InputError: expected op to be one of sum, avg, found 'max'.
    """
    words = list(known)
    if value not in words:
        raise InputError(f"expected {name} to be one of {', '.join(words)}, found {value!r}.")


def _home(name: str, function: Callable[..., Any]) -> str:
    """The shortest module in which people find a function, or the class that it makes."""
    parts = function.__module__.split(".")
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        found = getattr(sys.modules.get(module), name, None)
        if function in (found, getattr(found, "__init__", None)):
            return module
    return function.__module__


def shown(value: object) -> str:
    """Short text of a value for messages, with its type.

    Examples:
        >>> shown([1, 2]), shown("abc")
        ('[1, 2] (list)', "'abc' (str)")
    """
    text = repr(value)
    kind = type(value).__name__
    return (
        kind if len(text) > 60 or text.startswith("<") else f"{text} ({kind})" if value is not None else text
    )


def _unbound(name: str, signature: inspect.Signature, kwargs: Iterable[str], error: str) -> str:
    """What is wrong with arguments that do not match a signature."""
    known = [
        key
        for key, each in signature.parameters.items()
        if each.kind is not each.VAR_KEYWORD and key != "self"
    ]
    for key in kwargs:
        if key not in known:
            close = nearest(key, known)
            hint = f"did you mean `{close}`?" if close else f"its arguments are {', '.join(known)}."
            return f"{name} has no argument `{key}`: {hint}"
    return f"{name}: {error}: its arguments are {', '.join(known)}."


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type."""
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return callable(value)
    if hint in _NUMBERS:
        return isinstance(value, (*_NUMBERS[hint], *_of_numpy(hint))) and not isinstance(value, bool)
    if origin is None:
        return isinstance(value, hint) if isinstance(hint, type) else True
    if not isinstance(value, origin) or (isinstance(value, (str, bytes)) and origin not in (str, bytes)):
        return False
    if isinstance(value, collections.abc.Mapping) and len(inner) == 2:
        return all(_fits(each, inner[0]) and _fits(value[each], inner[1]) for each in value)
    if origin.__module__ == "numpy":
        return True
    if isinstance(value, collections.abc.Collection) and inner:
        return all(_fits(each, inner[0]) for each in value)
    return True


def _listed(value: Any, hint: Any) -> Any:
    """An array of NumPy as lists where a sequence is expected; anything else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return value
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return value.tolist() if any(typing.get_origin(each) in _SEQUENCES for each in parts) else value


def _words(hint: Any) -> str:
    """A type in words: ``an int, a str or None``."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    words = list(dict.fromkeys(_one(each) for each in parts))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _one(hint: Any) -> str:
    if hint is None or hint is type(None):
        return "None"
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(repr, inner))
    if origin is collections.abc.Callable:
        return "a function"
    name = (origin or hint).__name__
    article = "an" if name[0] in "aeiouAEIO" else "a"
    if inner and origin in _SEQUENCES:
        kinds = typing.get_args(inner[0]) if isinstance(inner[0], types.UnionType) else (inner[0],)
        return f"{article} {name.lower()} of {' or '.join(_one(each).split(' ')[-1] + 's' for each in kinds)}"
    return f"{article} {name}"


class CallableRoom(types.ModuleType):
    """A package that is called like its main function: ``coppice.export(...)`` where ``coppice.export`` is the room."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function of the room does."""
        return self.main_function(*args, **kwargs)

    @property
    def main_function(self) -> Callable[..., Any]:
        """The function that bears the name of the room, or that the room names as its ``MAIN``."""
        found: Callable[..., Any] = getattr(self, getattr(self, "MAIN", self.__name__.rpartition(".")[2]))
        return found

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the function, for ``help`` and completion."""
        return inspect.signature(self.main_function)

    def __dir__(self) -> list[str]:
        """Names of the room, also those that are loaded when they are first used."""
        return sorted({*super().__dir__(), *self.__dict__.get("__all__", ())})

    def _help(self) -> str:
        """Documentation of the function, with its signature, and then that of the room."""
        function = self.main_function
        # Examples stand with the function, which is shown behind this, and need its names.
        words = re.sub(r"(?ms)^Examples:\n.*?(?=^\S|\Z)", "", inspect.getdoc(function) or "").rstrip()
        head, _, rest = words.partition("\n\n")
        call = f"{function.__name__}{inspect.signature(function)}"
        own = f"As a package: {self.__dict__['__doc__']}"
        return "\n\n".join(filter(None, (head, call, rest, own)))

    __doc__ = property(_help)  # Of each room; the data of a module come behind it.
