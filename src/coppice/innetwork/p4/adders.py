"""What the program adds: int32 as SwitchML does, or float32 in integer registers as FPISA does.

An adder is the parts of the template that touch values. Those of FPISA compute as ``cpp/numerics/fpisa.cc`` does, in
expressions without branches: actions of v1model know no ``if``. Source: Yuan et al., "Unlocking the Power of Inline
Floating-Point Operations on Programmable Switches" (NSDI'22), sections 3 and 4; the program is our own.
"""

from __future__ import annotations

from collections.abc import Callable


def each_value(values: int, indent: int, line: Callable[[int], str]) -> str:
    """Write a line for each value.

    Examples:
        >>> each_value(2, 0, lambda v: f"v{v} = 0;").splitlines()
        ['v0 = 0;', 'v1 = 0;']
    """
    return ("\n" + " " * indent).join(line(value) for value in range(values))


_EXPONENTS_OF_PACKETS = """\
            int<8> greatest_0 = hdr.switchml.exponent_0;
            int<8> greatest_1 = hdr.switchml.exponent_1;
            if ($is_first$) {
                write_values();
            } else {
                add_values();
                exponent_0.read(greatest_0, cell);
                exponent_1.read(greatest_1, cell);
                if (hdr.switchml.exponent_0 > greatest_0) {
                    greatest_0 = hdr.switchml.exponent_0;
                }
                if (hdr.switchml.exponent_1 > greatest_1) {
                    greatest_1 = hdr.switchml.exponent_1;
                }
            }
            exponent_0.write(cell, greatest_0);
            exponent_1.write(cell, greatest_1);
            hdr.switchml.exponent_0 = greatest_0;
            hdr.switchml.exponent_1 = greatest_1;
"""


def integers(values: int) -> dict[str, str]:
    """Parts that add int32, which wrap around, and keep the greatest exponents that packets announce."""
    return {
        "title": "SwitchML: sums of int32",
        "adder_note": "",
        "sum_registers": "register<int<8>>(2 * SLOTS) exponent_0;\n    register<int<8>>(2 * SLOTS) exponent_1;\n    "
        + each_value(values, 4, lambda v: f"register<bit<32>>(2 * SLOTS) value_{v};"),
        "sum_actions": _action("write_values", values, lambda v: f"value_{v}.write(cell, hdr.values.v{v});")
        + _action(
            "add_values",
            values,
            lambda v: (
                f"value_{v}.read(held, cell); hdr.values.v{v} = hdr.values.v{v} + held; "
                f"value_{v}.write(cell, hdr.values.v{v});"
            ),
            "bit<32> held;",
        )
        + _action("read_values", values, lambda v: f"value_{v}.read(hdr.values.v{v}, cell);"),
        "sum_contribution": _EXPONENTS_OF_PACKETS,
        "sum_complete": "",
        "sum_answer": "read_values();\n            exponent_0.read(hdr.switchml.exponent_0, cell);\n"
        "            exponent_1.read(hdr.switchml.exponent_1, cell);",
    }


def floats(values: int, *, full: bool) -> dict[str, str]:
    """Parts that add float32: of each sum an exponent, 0 for one that is no number any more, and a signed mantissa."""
    return {
        "title": f"FPISA: sums of float32 by {'full' if full else 'approximate'} additions",
        "adder_note": _NOTE_FULL if full else _NOTE_APPROXIMATE,
        "sum_registers": "// Exponent and mantissa of each sum; below, what the actions work on\n    "
        + each_value(
            values,
            4,
            lambda v: f"register<bit<8>>(2 * SLOTS) e_{v}; register<int<32>>(2 * SLOTS) m_{v};",
        )
        + "\n    bit<1> starts = 0;\n    bit<32> word = 0;\n    bit<8> exponent = 0;\n    int<32> mantissa = 0;",
        "sum_actions": _ADD.replace("$align$", _ALIGN_FULL if full else _ALIGN_APPROXIMATE)
        + _READ
        + _action(
            "add_values",
            values,
            lambda v: (
                f"e_{v}.read(exponent, cell); m_{v}.read(mantissa, cell); word = hdr.values.v{v}; add_float(); "
                f"e_{v}.write(cell, exponent); m_{v}.write(cell, mantissa);"
            ),
        )
        + _action(
            "read_values",
            values,
            lambda v: (
                f"e_{v}.read(exponent, cell); m_{v}.read(mantissa, cell); read_float(); hdr.values.v{v} = word;"
            ),
        )
        + _NO_EXPONENTS,
        "sum_contribution": "            if ($is_first$) {\n                starts = 1;\n            }\n"
        "            add_values();\n",
        "sum_complete": "\n                read_values();\n                no_exponents();",
        "sum_answer": "read_values();\n            no_exponents();",
    }


_NOTE_FULL = """\
// A full addition shifts what is kept, which needs a register that is read, shifted, added to and written in one step:
// v1model has it, switches of today do not. What leaves is rounded to the nearest, ties to even.
"""
_NOTE_APPROXIMATE = """\
// An approximate addition shifts the value of the packet alone, as switches of today can: a value that is larger than
// the sum by more than 7 powers of two takes its place. What leaves is rounded to the nearest, ties to even.
"""

_ADD = """
    // (exponent, mantissa) += word, or = word where the sum starts. A mantissa is 24 bits with a sign, not normalised.
    action add_float() {
        bit<8> was = starts == 1 ? 8w1 : exponent;
        int<32> held = starts == 1 ? 32s0 : mantissa;
        bit<8> field = word[30:23];
        bit<32> fraction = (bit<32>) word[22:0];
        bit<8> given = field == 0 ? 8w1 : field;  // subnormal numbers have the exponent of the smallest normal ones
        int<32> magnitude = (int<32>) (fraction | (field == 0 ? 32w0 : 32w0x800000));
        int<32> value = word[31:31] == 1 ? -magnitude : magnitude;
        bit<8> up = given > was ? given - was : 8w0;
        bit<8> down = was > given ? was - given : 8w0;
$align$
        int<32> sum = kept + value;
        bool not_finite = field == 255;
        bool marked = was == 0;
        // Two of one sign never add up to the other; -2^31 has no opposite.
        bool left_register = ((kept < 0) == (value < 0) && (sum < 0) != (kept < 0)) || sum == (int<32>) 32w0x80000000;
        int<32> infinity = word[31:31] == 1 ? 32s2 : 32s1;
        int<32> met = not_finite ? (fraction == 0 ? infinity : 32s4) : (left_register && !marked ? 32s4 : 32s0);
        marked = marked || not_finite || left_register;
        mantissa = marked ? ((was == 0 ? held : 32s0) | met) : sum;
        exponent = marked ? 8w0 : after;
    }
"""

_ALIGN_FULL = """\
        int<32> kept = held >> up;
        value = value >> down;
        bit<8> after = given > was ? given : was;"""

_ALIGN_APPROXIMATE = """\
        bool replaces = up > (held == 0 ? 8w0 : 8w7);
        int<32> kept = replaces ? 32s0 : held;
        value = (value >> down) << (replaces ? 8w0 : up);
        bit<8> after = replaces ? given : was;"""

_READ = """
    // word = (exponent, mantissa), normalised and rounded.
    action read_float() {
        bit<32> magnitude = (bit<32>) (mantissa < 0 ? -mantissa : mantissa);
        // Where its leading bit is
        bit<32> rest = magnitude;
        int<16> leading = rest[31:16] != 0 ? 16s16 : 16s0;
        rest = rest[31:16] != 0 ? rest >> 16 : rest;
        leading = rest[15:8] != 0 ? leading + 8 : leading;
        rest = rest[15:8] != 0 ? rest >> 8 : rest;
        leading = rest[7:4] != 0 ? leading + 4 : leading;
        rest = rest[7:4] != 0 ? rest >> 4 : rest;
        leading = rest[3:2] != 0 ? leading + 2 : leading;
        rest = rest[3:2] != 0 ? rest >> 2 : rest;
        leading = rest[1:1] != 0 ? leading + 1 : leading;
        // Bits to cut off: down to 24 significant ones, or to the last place of subnormal numbers
        int<16> least = 1 - (int<16>) (bit<16>) exponent;
        int<16> cut = leading - 23 > least ? leading - 23 : least;
        bit<8> right = cut > 0 ? (bit<8>) (bit<16>) cut : 8w0;
        bit<8> left_by = cut < 0 ? (bit<8>) (bit<16>) (-cut) : 8w0;
        bit<32> kept = (magnitude >> right) << left_by;
        bit<32> half = right == 0 ? 32w0 : 32w1 << (right - 1);
        rest = right == 0 ? 32w0 : magnitude & ((32w1 << right) - 1);
        kept = right != 0 && (rest > half || (rest == half && kept[0:0] == 1)) ? kept + 1 : kept;
        // The leading 1 adds one to the exponent; so does a carry of rounding.
        bit<32> places = (bit<32>) (bit<16>) ((int<16>) (bit<16>) exponent + cut - 1);
        bit<32> bits = (places << 23) + kept;
        bits = bits >= 0x7f800000 ? 32w0x7f800000 : bits;
        bits = (bits | (mantissa < 0 ? 32w0x80000000 : 32w0));
        bits = mantissa == 0 ? 32w0 : bits;
        bit<32> mark = mantissa == 1 ? 32w0x7f800000 : (mantissa == 2 ? 32w0xff800000 : 32w0x7fc00000);
        word = exponent == 0 ? mark : bits;
    }
"""

_NO_EXPONENTS = """
    action no_exponents() {
        hdr.switchml.exponent_0 = 0;
        hdr.switchml.exponent_1 = 0;
    }
"""


def _action(name: str, values: int, line: Callable[[int], str], first: str = "") -> str:
    """An action with a line for each value."""
    begin = f"\n        {first}" if first else ""
    return f"\n    action {name}() {{{begin}\n        {each_value(values, 8, line)}\n    }}\n"
