"""Use of the command line: former names of options, and misuse in the words of all other errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coppice.text import nearest


def read_former_flags(command: Any) -> None:
    """Let a command, and all below it, read the former names of its options.

    A name that the command uses otherwise today is that.

    Args:
        command: A command of Typer whose function :func:`coppice.cli.options.declaring.with_options` declared.
    """
    for inner in getattr(command, "commands", {}).values():
        read_former_flags(inner)
    former = getattr(command.callback, "former_flags", {})
    takes_value = {
        flag: not each.is_flag
        for each in command.params
        if each.param_type_name == "option"
        for flag in (*each.opts, *each.secondary_opts)
    }
    former = {flag: each for flag, each in former.items() if flag not in takes_value}
    if not former:
        return
    parse = command.parse_args

    joined = [flags for flags, each in former.values() if each.value.startswith("+")]

    def parse_args(context: Any, words: Sequence[str]) -> Any:
        found = [*renamed(list(words))]
        if found != [*words]:
            for flags in joined[:1]:
                found = _one_value(found, flags)
        return parse(context, found)

    def renamed(words: list[str]) -> Iterator[str]:
        from coppice.cli.output import print_note

        said = set()
        while words:
            word = words.pop(0)
            flag, equals, value = word.partition("=")
            if word == "--" or (not word.startswith("-") and not command.allow_interspersed_args):
                yield from (word, *words)
                return
            if flag not in former:
                yield word
                if takes_value.get(flag) and not equals and words:
                    yield words.pop(0)
                continue
            flags, each = former[flag]
            now = next(name for name in flags if name.startswith("--"))
            if flag not in said:
                rewritten = "" if each.value in ("{}", "+{}") else f" {each.value.format('VALUE')}"
                print_note(f"note: {flag} is now {now}{rewritten}.")
                said.add(flag)
            yield now
            if not each.takes_value:
                yield each.value
            elif equals or words:
                yield each.value.removeprefix("+").format(value if equals else words.pop(0))

    command.parse_args = parse_args


def _one_value(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Words in which an option that is given several times is given once, its values joined by ``+``.

    Examples:
        >>> _one_value(["job", "--policy", "ddp", "--json", "--policy=1f1b"], ["--policy"])
        ['job', '--json', '--policy', 'ddp+1f1b']
    """
    kept: list[str] = []
    values: list[str] = []
    left = list(words)
    while left and left[0] != "--":
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in flags or not (equals or left):
            kept.append(word)
            continue
        values.append(value if equals else left.pop(0))
    return [*kept, *([flags[0], "+".join(values)] if values else []), *left]


def read_plainly(command: Any) -> None:
    """Let a command, and all below it, read plain values itself, without what checks those of any type.

    Typer reads every value, defaults included, by Pydantic, which takes as long to load as many a command runs. Texts,
    whole numbers in their limits, files and what has a parser of its own need none; all else is left to Typer, and so
    is every error. Versions of Typer that do not know such a reader are left as they are.

    Args:
        command: A command of Typer.
    """
    for inner in getattr(command, "commands", {}).values():
        if inner is not None:  # not loaded
            read_plainly(inner)
    of_context = command.get_params

    def get_params(context: Any) -> Any:  # the option for help is among them
        found = of_context(context)
        for each in found:
            if hasattr(each, "get_runtime_param") and "get_runtime_param" not in vars(each):
                each.get_runtime_param = _PlainValues(each.get_runtime_param)
        return found

    command.get_params = get_params


class _PlainValues:
    """Reader of the values of one option, which leaves what is not plain to another one."""

    def __init__(self, other: Callable[[], Any]) -> None:
        self._other = other

    def __call__(self) -> _PlainValues:
        """Where Typer asks for its reader."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that is meant."""
        kind, how = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        several = param.multiple or param.nargs != 1
        special = any(
            getattr(how, name, None) for name in ("click_type", "exists", "resolve_path", "clamp", "formats")
        )
        if not special and several and how.parser is None:
            if value is None:
                return ()
            if kind == list[str] and isinstance(value, list | tuple):
                return [*value]
        if not special and not several:
            if value is None or (isinstance(kind, type) and type(value) is kind and how.parser is None):
                return value
            if isinstance(value, str) and (found := _plain(value, kind, how)) is not None:
                return found
        return self._other().coerce(value, param=param, ctx=ctx)


def _plain(value: str, kind: Any, how: Any) -> Any:
    """A value of a kind, from its text; None where more has to be known."""
    if how.parser is not None:
        try:
            return how.parser(value)
        except Exception:  # noqa: BLE001 (Typer reads it again, and words the error)
            return None
    if kind is Path:
        return Path(value)
    if kind is not int or not (value.isascii() and value.isdecimal() and len(value) < 16):
        return None
    number = int(value)
    low, high = how.min, how.max
    return number if (low is None or number >= low) and (high is None or number <= high) else None


_EXTRA = re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$")
_COMMAND = re.compile(r"^No such command '(.*?)'\.")
_VALUE = re.compile(r"^Input should be (.*?)(?:, unable to .*)?\.?$")
_NO_VALUE = re.compile(r"^Option '(.*)' requires an argument\.?$")
_NEXT = "give one or leave the option out."


def usage_words(error: Any) -> str:
    """The sentence about an option or argument that a command does not take.

    Args:
        error: A usage error of the parser of the command line.

    Examples:
        >>> from types import SimpleNamespace as Error
        >>> usage_words(Error(ctx=None, message="Option '--size' requires an argument.", option_name=None, param=None))
        'expected a value for --size, found none: give one or leave the option out.'
    """
    context = error.ctx
    path = "coppice" if context is None else context.command_path
    there = f"`{path} --help` lists what there is."
    message = str(error.message)
    parameter = getattr(error, "param", None)
    hint = (
        "" if parameter is None else str(parameter.get_error_hint()).replace("'", "").replace(" / ", " or ")
    )
    if type(error).__name__ == "MissingParameter":
        return f"expected {hint}, found none; {there}"
    name = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and context is not None:
        options = [each for one in context.command.params for each in one.opts if each.startswith("--")]
        return f"expected an option of `{path}`, found {name}: {_nearest(str(name), options) or there}"
    found = _COMMAND.match(message)
    if found and context is not None:
        near = _nearest(found[1], list(context.command.list_commands(context)))
        return f"expected a command of `{path}`, found {found[1][:40]!r}: {near or there}"
    found = _EXTRA.match(message)
    if found:
        return f"expected no more arguments, found {found[1][:80]}; {there}"
    found = _NO_VALUE.match(message)
    if found:
        return f"expected a value for {found[1]}, found none: {_NEXT}"
    found = _VALUE.match(message)
    if found and hint:
        inner = error.__cause__ or error.__context__
        value = inner.errors()[0].get("input") if hasattr(inner, "errors") else "another value"
        return f"expected {hint} to be {found[1]}, found {str(value)[:40]}; {there}"
    if message == "Missing command.":
        return f"expected a command of `{path}`, found none; {there}"
    return f"{hint}: {message.rstrip('.')}; {there}" if hint else f"{message.rstrip('.')}; {there}"


def _nearest(word: str, known: list[str]) -> str:
    near = nearest(word.lstrip("-"), [each.lstrip("-") for each in known])
    return "" if near is None else f"did you mean {'--' * word.startswith('--')}{near}?"
