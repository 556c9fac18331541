"""Entries of tables and multicast groups as text: commands of BMv2's ``simple_switch_CLI``, written and read.

Of its commands these are known::

    table_add SwitchIngress.sender serve 02:00:00:00:01:00 10.0.0.1 => 0x1
    table_add TABLE ACTION KEY&&&MASK ... => ARGUMENT ... PRIORITY        (keys of the kind ternary)
    mc_mgrp_create 1
    mc_node_create RID PORT PORT ...                                      (nodes are numbered from 0)
    mc_node_associate GROUP NODE

A key or an argument is a number, a MAC address or an IPv4 address; ``KEY/LENGTH`` is a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.p4.generator import P4Export, number_of_mac
from reference.p4.device import P4Switch, Replica
from reference.p4.language.programs import read_program

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


@checked
def load_commands(switch: P4Switch, text: str, *, file: str = "the commands") -> None:
    """Fill tables and multicast groups of a switch.

    Args:
        switch: The switch.
        text: Commands, one a line; ``#`` begins a comment.
        file: Its name, for messages.

    Raises:
        InputError: If a line is none of the commands that are known, or does not fit the program.
    """
    nodes: list[tuple[int, list[int]]] = []
    groups: dict[int, list[Replica]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            match words:
                case ["table_add", table, action, *rest]:
                    _table_add(switch, table, action, rest)
                case ["mc_mgrp_create", group]:
                    groups[_number(group)] = []
                case ["mc_node_create", rid, *ports]:
                    nodes.append((_number(rid), [_number(port) for port in ports]))
                case ["mc_node_associate", group, handle]:
                    rid_of, ports_of = nodes[_number(handle)]
                    groups[_number(group)] += [Replica(port, rid_of) for port in ports_of]
                case _:
                    raise InputError(
                        f"expected table_add, mc_mgrp_create, mc_node_create or mc_node_associate, found {words[0]}."
                    )
        except (InputError, KeyError, IndexError) as error:
            words_of = (
                error if isinstance(error, InputError) else "expected a group and a node that were created."
            )
            raise InputError(f"{file}:{number}: {words_of}") from None
    for number_of_group, replicas in groups.items():
        switch.add_group(number_of_group, replicas)


def _number(text: str) -> int:
    if _MAC.fullmatch(text):
        return number_of_mac(text)
    try:
        return int(IPv4Address(text)) if text.count(".") == 3 else int(text, 0)
    except ValueError:
        raise InputError(f"expected a number, a MAC address or an IPv4 address, found {text!r}.") from None


def _table_add(switch: P4Switch, table: str, action: str, words: Sequence[str]) -> None:
    if "=>" not in words or table not in switch.program.tables:
        raise InputError(
            f"expected a table of the program, its keys, => and arguments, found {table} {' '.join(words)}."
        )
    at = words.index("=>")
    matches = [(key.type, match) for key, match in switch.program.tables[table].keys]
    if len(matches) != at:
        raise InputError(f"{table} has {len(matches)} keys, found {at}.")
    keys, masks = [], []
    for word, (of, match) in zip(words[:at], matches, strict=True):
        width = getattr(of, "width", 0)
        separator = {"ternary": "&&&", "lpm": "/"}.get(match, "")
        key, _, behind = word.partition(separator) if separator else (word, "", "")
        full = (1 << width) - 1
        if match == "lpm":
            length = _number(behind or str(width))
            if length > width:
                raise InputError(f"expected a prefix of up to {width} bits, found {length}.")
            mask = full >> length ^ full
        else:
            mask = _number(behind) if behind else full
        keys.append(_number(key))
        masks.append(mask)
    arguments = [_number(word) for word in words[at + 1 :]]
    ternary = any(match == "ternary" for _, match in matches)
    priority = arguments.pop() if ternary and arguments else 0
    switch.add_entry(table, action, keys, arguments, masks=masks, priority=priority)


def interpreter_of(made: P4Export) -> P4Switch:
    """The interpreter with a program as it is written, and its entries."""
    ports = [each.port for each in made.rack.attached]
    switch = P4Switch(read_program(made.program, file="switchml.p4"), num_ports=max(ports) + 1)
    load_commands(switch, made.entries, file="entries.txt")
    return switch
