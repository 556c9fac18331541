"""Read options by their former names, with a note that names the new ones once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


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
        from coppice.cli.output.render import print_note

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
