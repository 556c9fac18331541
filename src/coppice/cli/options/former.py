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

    def parse_args(context: Any, words: Sequence[str]) -> Any:
        return parse(context, [*renamed(list(words))])

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
                rewritten = "" if each.value == "{}" else f" {each.value.format('VALUE')}"
                print_note(f"note: {flag} is now {now}{rewritten}.")
                said.add(flag)
            yield now
            if not each.takes_value:
                yield each.value
            elif equals or words:
                yield each.value.format(value if equals else words.pop(0))

    command.parse_args = parse_args
