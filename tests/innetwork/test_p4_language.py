"""The interpreter of P4_16: what it refuses and where, what its operators give, and which broken programs are seen."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.innetwork.p4.generator import P4Export, export_p4
from innetwork.frames import Request, reply_frame
from reference.p4.control_plane import load_commands
from reference.p4.device import P4Switch, Replica
from reference.p4.language.programs import read_program

FRAME = """\
#include <core.p4>
#include <v1model.p4>
typedef bit<9> port_t;
const bit<8> THREE = 3;
header word_t { bit<8> kind; bit<16> number; int<8> level; bit<32> result; }
struct headers_t { word_t word; word_t second; }
struct metadata_t { bit<1> flag; bit<32> index; bool known; }
parser Reader(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start { packet.extract(hdr.word); PARSER }
    state more { packet.extract(hdr.second); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<32>>(4) cells;
    counter(2, CounterType.packets) counts;
    action send(port_t port) { std.egress_spec = port; }
    action drop() { mark_to_drop(std); }
    table routes {
        key = { hdr.word.number: lpm; hdr.word.kind: exact; }
        actions = { send; drop; }
        default_action = drop();
    }
    table filters {
        key = { hdr.word.kind: ternary; }
        actions = { send; drop; NoAction; }
        size = 3;
    }
    apply { BODY }
}
control Egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply { } }
control Sums(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Writer(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.word); packet.emit(hdr.second); } }
V1Switch(Reader(), Verify(), Ingress(), Egress(), Sums(), Writer()) main;
"""
BODY_LINE = 1 + FRAME[: FRAME.index("BODY")].count("\n")
BODY_COLUMN = FRAME[: FRAME.index("BODY")].rpartition("\n")[2].__len__() + 1


def program(body: str, parser: str = "transition accept;") -> P4Switch:
    return P4Switch(
        read_program(FRAME.replace("BODY", body).replace("PARSER", parser), file="t.p4"), num_ports=8
    )


def word(kind: int = 0, number: int = 0, level: int = 0, result: int = 0) -> bytes:
    return (
        bytes((kind,))
        + number.to_bytes(2, "big")
        + level.to_bytes(1, "big", signed=True)
        + result.to_bytes(4, "big")
    )


def result_of(expression: str, *, kind: int = 0, number: int = 0, level: int = 0) -> int:
    """What an expression of 32 bits is for a frame."""
    sent = program(f"hdr.word.result = {expression};").receive(0, word(kind, number, level))
    return int.from_bytes(sent[0][1][4:8], "big")


@pytest.mark.parametrize(
    ("body", "column", "words"),
    [
        ("hdr.word.kind = hdr.word.number;", 17, r"type bit<8>, found bit<16>: write a cast"),
        ("hdr.word.kind = 256;", 17, r"a number of bit<8> \(0 .. 255\), found 256"),
        ("hdr.word.level = -129;", 18, r"a number of int<8> \(-128 .. 127\), found -129"),
        ("hdr.word.number = hdr.word.number + hdr.word.kind;", 35, "one type, found bit<16> and bit<8>"),
        ("hdr.word.kind = hdr.word.kind + hdr.word.level;", 31, "one type, found bit<8> and int<8>"),
        ("hdr.word.kind = (bit<8>) hdr.word.number[7:0] ++ 8w0;", 47, "type bit<8>, found bit<16>"),
        ("hdr.word.level = (int<8>) hdr.word.number;", 18, "no cast from bit<16> to int<8>"),
        ("hdr.word.kind = hdr.word.number[16:9];", 17, r"part of the bits 15 .. 0, found \[16:9\]"),
        ("hdr.word.kind = hdr.word.kind << hdr.word.level;", 31, "shift by an unsigned number, found int<8>"),
        ("if (hdr.word.kind) { drop(); }", 5, "condition of type bool, found bit<8>"),
        ("if (hdr.word.kind == hdr.word) { drop(); }", 22, "found header word_t as a whole"),
        ("if (meta.known + 1 == 2) { drop(); }", 16, "takes operands of one type, found bool and int"),
        ("hdr.word.sort = 1;", 1, "header word_t has no field sort"),
        ("hdr.word.numbr = 1;", 1, "did you mean number?"),
        ("THREE = 4;", 1, "expected a field or a variable to write to"),
        ("nothing = 4;", 1, "nothing is not declared"),
        ("send(1, 2);", 1, "expected 1 arguments, found 2"),
        ("send(512);", 6, r"a number of bit<9> \(0 .. 511\), found 512"),
        ("cells.read(hdr.word.number, 0);", 12, "cells holds bit<32>, found bit<16> to read it to"),
        ("cells.write(0, hdr.word.number);", 16, "type bit<32>, found bit<16>"),
        ("bit<8> x; bit<8> x;", 11, "x is declared twice"),
        ("routes.lookup();", 1, "there is no lookup to call here"),
        ("hdr.extract(hdr.word);", 1, "there is no extract to call here"),
        ("switch (THREE) { }", 1, "expected an expression, found 'switch'"),
        ("hdr.word.kind = 1", 19, "expected ';', found '}'"),
        ("hdr.word.kind ~ 1;", 15, "expected ';', found '~'"),
        ("hdr.word.kind = 300w1 / 2;", 23, "numbers that are known when the program is read"),
        ("hdr.word.kind = 1 $ 2;", 19, r"a word of P4, found '\$'"),
        ("return 4;", 8, "expected ';', found '4'"),
    ],
)
def test_what_is_refused_is_shown_by_line_and_column(body: str, column: int, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        program(body)
    place = f"t.p4:{BODY_LINE}:{column + BODY_COLUMN - 1}: "
    assert str(refused.value).startswith(place), refused.value


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("bit<8> kind;", "bit<7> kind;", "5:1: expected a header of whole bytes, found 63 bits"),
        ("bit<8> kind;", "bool kind;", "5:17: a header has fields of bits, found bool"),
        ("bit<8> kind;", "bit<8> number;", "5:32: word_t has the field number twice"),
        (
            "inout metadata_t meta, inout",
            "in metadata_t meta, inout",
            "expected the direction inout, found in",
        ),
        (
            "in headers_t hdr) { apply { packet.emit",
            "out headers_t hdr) { apply { packet.emit",
            "the direction in",
        ),
        (" Sums(),", "", "V1Switch has 6 parts, found 5"),
        (" main;", " other;", r"expected V1Switch\(...\) main; at the end"),
        ("<v1model.p4>", "<tna.p4>", "2:1: expected #include of <core.p4> or <v1model.p4>"),
        ("Verify(),", "Ingress(),", "expected the parameters"),
        ("number: lpm;", "number: range;", "expected one of exact, ternary, lpm, found range"),
        ("kind: exact;", "kind: lpm;", "at most one key of the kind lpm"),
        ("size = 3;", "const entries = { }", "expected key, actions, default_action or size"),
        ("default_action = drop();", "default_action = NoAction();", "none of the actions of this table"),
        ("action drop() {", "action drop() { if (meta.known) { return; }", "actions of v1model know no if"),
        ("action drop() {", "action drop() { routes.apply();", "routes is not declared"),
        ("state more {", "state start {", "the state start is declared twice"),
        ("register<bit<32>>(4)", "register<bit<32>>(0)", "expected 1 to 16,777,216 cells, found 0"),
        ("const bit<8> THREE", "const bit<8> counter", "counter is declared twice"),
        (
            "CounterType.packets",
            "HashAlgorithm.packets",
            "expected the number of cells and CounterType.packets",
        ),
        ("CounterType.packets", "4", "expected the number of cells and CounterType.packets"),
        ("typedef bit<9> port_t;", "typedef bit<0> port_t;", "expected a width up to 65,536 bits, found 0"),
        ("struct metadata_t", "enum metadata_t", "expected a declaration of header, struct"),
    ],
)
def test_declarations_that_are_refused(old: str, new: str, words: str) -> None:
    text = FRAME.replace("BODY", "").replace("PARSER", "transition accept;")
    assert old in text
    read_program(text)
    with pytest.raises(InputError, match=words):
        read_program(text.replace(old, new, 1))


@pytest.mark.parametrize("seed", range(4))
def test_any_text_is_a_program_or_refused_at_a_place(seed: int) -> None:
    """Words left out, doubled and exchanged: nothing but an error with its place comes of them."""
    rng = random.Random(seed)
    body = "if (routes.apply().hit && !meta.known) { cells.read(hdr.word.result, 1); } else { bit<8> x = 3; send(3); }"
    text = FRAME.replace("BODY", body).replace(
        "PARSER", "transition select(hdr.word.kind) { 1 &&& 3: more; }"
    )
    words = re.findall(r"\w+|\s+|\S", text)
    refusals = []
    for _ in range(100):
        changed = list(words)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(words))] = rng.choice(["", rng.choice(words), "7", "8s200", "}", "é"])
        try:
            read_program("".join(changed), file="t.p4")
        except InputError as error:
            refusals.append(str(error))
    assert len(refusals) > 60
    assert all(re.match(r"t\.p4:\d+:\d+: ", each) for each in refusals)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(bit<32>) (hdr.word.kind + 10)", 4),
        ("(bit<32>) (hdr.word.kind - 251)", 255),
        ("(bit<32>) (hdr.word.kind * 2)", 244),
        ("(bit<32>) (-hdr.word.kind)", 6),
        ("(bit<32>) (~hdr.word.kind)", 5),
        ("(bit<32>) (hdr.word.kind << 4)", 0xA0),
        ("(bit<32>) (hdr.word.kind << 9)", 0),
        ("(bit<32>) (hdr.word.kind >> 4)", 15),
        ("(bit<32>) hdr.word.kind ++ 8w1", 0xFA01),
        ("(bit<32>) (int<32>) (int<16>) hdr.word.level", 2**32 - 100),
        ("(bit<32>) (bit<8>) hdr.word.level", 156),
        ("(bit<32>) (bit<8>) (hdr.word.level - 100)", 56),
        ("(bit<32>) (bit<8>) (hdr.word.level >> 2)", 231),
        ("(bit<32>) (bit<8>) (-hdr.word.level)", 100),
        ("(bit<32>) hdr.word.number[11:4]", 0x23),
        ("hdr.word.level < 0 ? 32w1 : 0", 1),
        ("hdr.word.kind > 127 ? 32w1 : 0", 1),
        ("hdr.word.kind & 3 == 2 ? 32w1 : 0", 1),  # bits bind more than comparisons, other than in C
        ("1 + 2 * 3 - 8 / 2", 3),
        ("(bit<32>) (bit<1>) (meta.known || THREE == 3)", 1),
    ],
)
def test_operators(expression: str, value: int) -> None:
    text = expression
    if text.startswith("(bit<32>) hdr.word.kind ++"):
        text = "16w0 ++ hdr.word.kind ++ 8w1"
    assert result_of(text, kind=250, number=0x1234, level=-100) == value


@settings(max_examples=30)
@given(st.integers(0, 255), st.integers(-128, 127), st.integers(0, 2**16 - 1))
def test_integers_wrap_as_numpy_does(kind: int, level: int, number: int) -> None:
    with np.errstate(over="ignore"):
        eight, signed = np.array([kind], np.uint8), np.array([level], np.int8)
        wanted = [
            eight * eight + eight,
            signed * signed - signed,
            np.array([number], np.uint16) * np.uint16(77),
        ]
    switch = program(
        "bit<8> one = hdr.word.kind * hdr.word.kind + hdr.word.kind;"
        "int<8> two = hdr.word.level * hdr.word.level - hdr.word.level;"
        "hdr.word.number = hdr.word.number * 77; hdr.word.kind = one; hdr.word.level = two;"
    )
    sent = switch.receive(0, word(kind, number, level))
    assert sent[0][1][:4] == word(int(wanted[0][0]), int(wanted[2][0]), int(wanted[1][0]))[:4]


class TestRunning:
    def test_parser_errors_leave_the_rest(self) -> None:
        switch = program(
            "if (std.parser_error == error.PacketTooShort) { hdr.word.kind = 9; }",
            parser="transition select(hdr.word.kind, hdr.word.number) {"
            " (1, _): more; (2 &&& 6, 5 .. 7): more; (3, default): accept; }",
        )
        two = word(1) + word(7, 7) + b"rest"
        assert switch.receive(0, two) == [(0, two)]
        assert switch.receive(0, word(1) + b"short") == [(0, word(9) + b"short")]
        assert switch.receive(0, word(2, 6) + b"x") == [(0, word(9, 6) + b"x")]
        assert switch.receive(0, word(2, 8) + word(5)) == [
            (0, word(2, 8) + word(5))
        ]  # no case: the error is NoMatch

    @pytest.mark.parametrize(
        "body",
        [
            "bit<32> x; hdr.word.result = x;",
            "hdr.word.kind = hdr.second.kind;",
            "hdr.second.kind = 1;",
            "hdr.second.setValid(); hdr.second.kind = 1;",
            "cells.write(4, 1);",
            "counts.count((bit<32>) hdr.word.number);",
        ],
    )
    def test_what_p4_leaves_undefined_is_an_error(self, body: str) -> None:
        with pytest.raises(InputError, match=r"nothing was written|not valid|has \d cells"):
            program(body).receive(0, word(1, 2))

    def test_headers_come_and_go(self) -> None:
        switch = program("hdr.word.setInvalid(); exit; drop();")
        assert switch.receive(0, word(1) + b"x") == [(0, b"x")]

    def test_tables(self) -> None:
        switch = program("if (!routes.apply().hit) { filters.apply(); }")
        add = switch.add_entry
        add("Ingress.routes", "send", (0x1200, 5), (1,), masks=(0xFF00, 0xFF))
        add("Ingress.routes", "send", (0x1230, 5), (2,), masks=(0xFFF0, 0xFF))
        add("Ingress.routes", "send", (0x1234, 5), (3,))
        load_commands(
            switch,
            "table_add Ingress.filters send 0x10&&&0xf0 => 4 2\ntable_add Ingress.filters send 1 => 5 9",
        )
        add("Ingress.filters", "drop", (0x11,), priority=1)
        ports = [
            [port for port, _ in switch.receive(0, word(kind, number))]
            for kind, number in [
                (5, 0x1234),
                (5, 0x1235),
                (5, 0x12FF),
                (5, 0x1300),
                (1, 0),
                (0x12, 0),
                (0x11, 0),
            ]
        ]
        assert ports == [[3], [2], [1], [], [5], [4], []]
        with pytest.raises(InputError, match="room for 3 entries"):
            add("Ingress.filters", "drop", (0x17,))
        with pytest.raises(InputError, match="an entry for 0x1234, 0x5 already"):
            add("Ingress.routes", "drop", (0x1234, 5))
        with pytest.raises(InputError, match="has the actions send, drop, found 'sent'"):
            add("Ingress.routes", "sent", (0, 0))
        with pytest.raises(
            InputError, match=r"arguments of Ingress\.routes -> send within bit<9>, found 512"
        ):
            add("Ingress.routes", "send", (0, 0), (512,))
        with pytest.raises(InputError, match="expected a mask for lpm"):
            add("Ingress.routes", "send", (0, 0), (1,), masks=(0x00FF, 0xFF))

    def test_multicast(self) -> None:
        switch = program("std.mcast_grp = 5;")
        assert switch.receive(0, word()) == []
        switch.add_group(5, [Replica(3, 1), Replica(3, 2), Replica(0, 3)])
        assert [port for port, _ in switch.receive(0, word())] == [3, 3, 0]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("table_del x", "commands:2: expected table_add, mc_mgrp_create"),
            ("table_add Ingress.filters send 1 2 => 3 1", "has 1 keys, found 2"),
            ("table_add Ingress.filter send 1 => 3 1", "expected a table of the program"),
            (
                "table_add Ingress.filters send x => 3 1",
                "expected a number, a MAC address or an IPv4 address",
            ),
            ("mc_node_associate 1 0", "a group and a node that were created"),
        ],
    )
    def test_commands_that_are_refused(self, line: str, words: str) -> None:
        with pytest.raises(InputError, match=words):
            load_commands(program(""), f"\n{line}", file="commands")


MUTATIONS = {
    "sets swapped": ("hdr.switchml.set == 0", "hdr.switchml.set == 1"),
    "sets share cells": ("cell = cell + SLOTS;", "cell = cell;"),
    "bitmap not kept": ("seen.write(cell, before | meta.worker);", ""),
    "bitmap of the other set not cleared": ("seen.write(other, before_other & ~meta.worker);", ""),
    "bitmap of the other set cleared whole": ("before_other & ~meta.worker", "before_other & ~before_other"),
    "counter not kept": ("missing.write(cell, left);", ""),
    "one too few": ("const bit<8> WORKERS = 3;", "const bit<8> WORKERS = 2;"),
    "first not written": ("                write_values();", "                add_values();"),
    "last not added": ("                add_values();\n", ""),
    "one value not added": ("hdr.values.v63 = hdr.values.v63 + held; ", ""),
    "one value not read": ("value_17.read(hdr.values.v17, cell);", ""),
    "least exponent": ("hdr.switchml.exponent_0 > greatest_0", "hdr.switchml.exponent_0 < greatest_0"),
    "exponent not kept": ("exponent_1.write(cell, greatest_1);", ""),
    "sum to one": ("standard_metadata.mcast_grp = WORKERS_GROUP;", "standard_metadata.egress_spec = 0;"),
    "answer to all": (
        "standard_metadata.egress_spec = standard_metadata.ingress_port;",
        "standard_metadata.mcast_grp = WORKERS_GROUP;",
    ),
    "ports not swapped": ("hdr.udp.destination = udp_port;", ""),
    "checksum of UDP kept": ("hdr.udp.checksum = 0;", ""),
    "time to live kept": ("hdr.ipv4.ttl = 64;", ""),
    "checksum of IPv4 kept": ("update_checksum(meta.reply == 1", "update_checksum(meta.reply == 0"),
    "address of the receiver": ("hdr.ethernet.destination = mac;\n        hdr.ipv4", "hdr.ipv4"),
}


def conversation(text: str, entries: str) -> tuple[list[list[tuple[int, bytes]]], object]:
    """What three workers see, and what the switch keeps: sums in both sets, retransmissions, reuse."""
    switch = P4Switch(read_program(text), num_ports=3)
    load_commands(switch, entries)
    seen = []
    for use in range(4):
        for worker, of in ((0, use), (1, use - 1), (1, use), (1, use), (2, use), (0, use)):
            if of >= 0:
                values = tuple((worker + 2) * (of + 3) * (value + 1) for value in range(64))
                exponents = (worker - 5 * of, 7 - worker)
                packet = Request(worker, 1, of % 2, values, id=1 + 4 * of, exponents=exponents)
                seen.append(switch.receive(worker, packet.frame()))
    return seen, switch.registers


@cache
def right(variant: Literal["guarded", "published"]) -> tuple[P4Export, list[list[tuple[int, bytes]]], object]:
    """The program, and the conversation as it is to be."""
    made = export_p4(workers=3, slots=4, variant=variant)
    return made, *conversation(made.program, made.entries)


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("variant", ["published", "guarded"])
@pytest.mark.spread(3)
def test_broken_programs_are_seen(name: str, variant: Literal["guarded", "published"]) -> None:
    made, frames, registers = right(variant)
    old, new = MUTATIONS[name]
    assert old in made.program
    last = Request(2, 1, 1, (0,) * 64, id=13)
    sums = tuple(54 * (value + 1) for value in range(64))
    assert frames[-2] == [(each, reply_frame(last, each, sums, (-13, 7))) for each in range(3)]
    try:
        found, kept = conversation(made.program.replace(old, new), made.entries)
    except InputError:
        return
    assert found != frames or (name == "sets swapped" and kept != registers)
