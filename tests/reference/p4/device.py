"""A switch that runs a P4_16 program on frames, as v1model says: parser, ingress, replication, egress, deparser."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coppice.arguments import checked
from coppice.errors import InputError
from reference.p4.language.blocks import Exited
from reference.p4.language.calls import DROPPED, ActionSymbol, FrameCursor, ParsingError, TableSymbol
from reference.p4.language.programs import P4Program
from reference.p4.language.types import DEVICE, PACKET, BitType, Cells, LeafPlace

_REPLICATED = 5  # instance_type of a copy that was made for a multicast group
_PORTS = 511


class Replica(NamedTuple):
    """One copy of a frame that a multicast group makes.

    Attributes:
        port: Where it leaves.
        rid: Number by which egress tells it from the others.
    """

    port: int
    rid: int


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table.

    Attributes:
        values: Of its keys.
        masks: Bits of them that count.
        order: The entry with the least is taken where several match.
        action: What is performed.
        arguments: Of the action.
    """

    values: tuple[int, ...]
    masks: tuple[int, ...]
    order: int
    action: ActionSymbol
    arguments: tuple[int, ...]


@dataclass
class TableContents:
    """Entries of a table."""

    exact: dict[tuple[int, ...], TableEntry] = field(default_factory=dict)
    masked: list[TableEntry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.exact) + len(self.masked)

    def look_up(self, keys: tuple[int, ...]) -> tuple[ActionSymbol, tuple[int, ...]] | None:
        """Action and arguments of the entry that matches."""
        found = self.exact.get(keys)
        if found is None:
            for entry in self.masked:
                if all(
                    key & mask == value
                    for key, mask, value in zip(keys, entry.masks, entry.values, strict=True)
                ):
                    found = entry
                    break
        return None if found is None else (found.action, found.arguments)


class P4Switch:
    """A switch with a program in it.

    Registers start at 0, tables empty.

    Args:
        program: The program.
        num_ports: Ports that it has, 0 to 511.

    Attributes:
        registers: Cells that were written, by the name of the register and the index.
        counters: Counts, by the name of the counter.
        tables: Entries, by the name of the table.
        groups: Copies that are made for each multicast group.
        checksum_error: Cell of the field that verification sets.
    """

    @checked
    def __init__(self, program: P4Program, *, num_ports: int = 64) -> None:
        if not 1 <= num_ports <= _PORTS:
            raise InputError(
                f"expected 1 to {_PORTS} ports, found {num_ports}: choose `num_ports` among them."
            )
        self.program = program
        self.num_ports = num_ports
        self.registers: dict[str, dict[int, int]] = {name: {} for name in program.registers}
        self.counters = {name: [0] * each.cells for name, each in program.counters.items()}
        self.tables = {name: TableContents() for name in program.tables}
        self.groups: dict[int, tuple[Replica, ...]] = {}
        self._cells = {
            name: place.cell
            for name, place in program.standard.members.items()
            if isinstance(place, LeafPlace)
        }
        self.checksum_error = self._cells["checksum_error"]

    @checked
    def add_entry(
        self,
        table: str,
        action: str,
        keys: Sequence[int],
        arguments: Sequence[int] = (),
        *,
        masks: Sequence[int] | None = None,
        priority: int = 0,
    ) -> None:
        """Add an entry to a table.

        Args:
            table: Its name, with that of the control before it: ``SwitchIngress.sender``.
            action: Name of one of its actions.
            keys: A value for each of its keys.
            arguments: A value for each parameter of the action.
            masks: Bits of the keys that count; all of them by default.
            priority: Of keys of the kind ternary; the smallest number is taken first.

        Raises:
            InputError: If there is no such table or action, values do not fit, the entry is there already, or the
                table is full.
        """
        symbol = self._table(table)
        if action not in symbol.actions:
            raise InputError(
                f"{table} has the actions {', '.join(symbol.actions)}, found {action!r}: name one of them."
            )
        performed = symbol.actions[action]
        widths = [key.type for key, _ in symbol.keys]
        _check_values(table, "keys", keys, widths)
        _check_values(
            f"{table} -> {action}", "arguments", arguments, [each.type for each in performed.parameters]
        )
        full = [each.most for each in widths if isinstance(each, BitType)]
        used = list(masks) if masks is not None else full
        _check_values(table, "masks", used, widths)
        for (_, match), mask, all_bits in zip(symbol.keys, used, full, strict=True):
            missing = all_bits & ~mask
            if (match == "exact" and missing) or (match == "lpm" and missing & missing + 1):
                raise InputError(
                    f"expected a mask for {match} in {table}, found {mask:#x}: leave it out, or take a prefix."
                )
        contents = self.tables[table]
        if len(contents) >= symbol.size:
            raise InputError(f"{table} has room for {symbol.size} entries: make the table larger.")
        values = tuple(key & mask for key, mask in zip(keys, used, strict=True))
        prefix = sum(
            mask.bit_count() for (_, match), mask in zip(symbol.keys, used, strict=True) if match == "lpm"
        )
        entry = TableEntry(values, tuple(used), priority - (prefix << 32), performed, tuple(arguments))
        same = [each for each in contents.masked if (each.values, each.masks) == (values, entry.masks)]
        if values in contents.exact or any(each.order == entry.order for each in same):
            raise InputError(f"{table} has an entry for {_hex(values)} already: leave one of them out.")
        if all(match == "exact" for _, match in symbol.keys):
            contents.exact[values] = entry
            return
        contents.masked.append(entry)
        contents.masked.sort(key=lambda each: each.order)

    @checked
    def add_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Say which copies a multicast group makes.

        Args:
            group: Its number, 1 to 65535.
            replicas: The copies.

        Raises:
            InputError: If a number is beyond those that there are.
        """
        for each in replicas:
            if not (0 <= each.port < self.num_ports and 0 <= each.rid < 1 << 16):
                raise InputError(
                    f"expected ports 0 .. {self.num_ports - 1}, found a copy to {each.port}: choose among them."
                )
        if not 1 <= group < 1 << 16:
            raise InputError(f"expected a multicast group of 1 to 65535, found {group}: choose among them.")
        self.groups[group] = tuple(replicas)

    @checked
    def receive(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """What the switch sends for a frame.

        Args:
            port: Where the frame comes in.
            frame: The frame without its checksum at the end.

        Returns:
            Ports and frames.

        Raises:
            InputError: If there is no such port, or the program reads what v1model leaves undefined; the message names
                the line and the column of the program.
        """
        if not 0 <= port < self.num_ports:
            raise InputError(
                f"expected a port of 0 .. {self.num_ports - 1}, found {port}: choose among them."
            )
        parser, verify, ingress, *_ = self.program.blocks
        cells = list(self.program.initial)
        cells[DEVICE], cells[PACKET] = self, FrameCursor(frame)
        cells[self._cells["ingress_port"]] = port
        cells[self._cells["packet_length"]] = len(frame)
        try:
            parser(cells)
        except ParsingError as error:
            cells[self._cells["parser_error"]] = error.error
        with suppress(Exited):
            verify(cells)
            ingress(cells)
        group, out_port = cells[self._cells["mcast_grp"]], cells[self._cells["egress_spec"]]
        if group:
            copies: Sequence[Replica] = self.groups.get(group, ())
        else:
            copies = () if out_port == DROPPED else (Replica(out_port, 0),)
        sent = []
        for copy in copies:
            out = self._leave(list(cells), copy, replicated=bool(group))
            if out is not None and copy.port < self.num_ports:
                sent.append((copy.port, out))
        return sent

    def _leave(self, cells: Cells, copy: Replica, *, replicated: bool) -> bytes | None:
        """Egress of one copy; None where it is dropped."""
        *_, egress, checksums, deparser = self.program.blocks
        came: FrameCursor = cells[PACKET]
        cells[PACKET] = FrameCursor(came.data, came.place)
        cells[self._cells["egress_port"]] = copy.port
        cells[self._cells["egress_rid"]] = copy.rid
        cells[self._cells["instance_type"]] = _REPLICATED if replicated else 0
        cells[self._cells["egress_spec"]] = 0
        with suppress(Exited):
            egress(cells)
        if cells[self._cells["egress_spec"]] == DROPPED:
            return None
        checksums(cells)
        deparser(cells)
        return bytes(cells[PACKET].out + came.data[came.place :])

    def _table(self, name: str) -> TableSymbol:
        found = self.program.tables.get(name)
        if found is None:
            raise InputError(
                f"the program has the tables {', '.join(self.program.tables)}, found {name!r}: name one of them."
            )
        return found


def _hex(values: Sequence[int]) -> str:
    return ", ".join(f"{each:#x}" for each in values)


def _check_values(place: str, what: str, values: Sequence[int], types: Sequence[Any]) -> None:
    if len(values) != len(types):
        raise InputError(f"{place} has {len(types)} {what}, found {len(values)}: give one value for each.")
    for value, of in zip(values, types, strict=True):
        if not of.least <= value <= of.most:
            raise InputError(
                f"expected {what} of {place} within {of}, found {value}: give a number of so many bits."
            )
