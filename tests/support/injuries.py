"""Random injuries to topology files: to their bytes, and to their structure (the syntax stays whole)."""

from __future__ import annotations

import copy
import json
import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import yaml

MOST_BYTES = 200_000

TOKENS = [
    b"-1", b"0", b"1", b"1e999999999", b"9" * 25, b"9" * 5000, b"NaN", b"1/0", b"0.1", b"null", b"true",
    b'""', b"[", b"{", b"]", b"}", b"<", b"</pci>", b"/>", b'<pci busid="0000:01:00.0">', b"&amp;",
    b"&lol;", b"\x00", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800",
    b"\\u0000", b"*a", b"&a ", b"!!python/object:x ", b"? ", b": ", b"- ", b"---\n", b"\t", b"\n", b" X ",
    b"NV99", b"NV4", b"SYS", b"PIX", b"GPU0", b"GPU999999", b"XGMI", b"\x1b[31m", b"count",
    b'target="0000:02:00.0"', b"===", b"<<: ", b"'", b'"', b"%YAML 9.9\n", b"@", b"`",
]  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.1, 1e308, 1e-300, "", "a0", "b1", "gpu", "switch",
    "x" * 5000, "1/3", "1/0", "1e999", "-5", "\ud800", "\n", [], {}, [[[[]]]], {"id": "a0"}, "1/2147483647",
    "1/2147483629", 4e9,
]  # fmt: skip

ATTRIBUTES = [
    "", "0", "1", "-1", "16", "99999999999999999999", "0x030200", "0x068000", "0x060400", "0x068001",
    "0x020000", "0x12", "0000:02:00.0", "0000:05:00.0", "ffff:ff:01.0", "fffffff:ffff:ff.0", "2.5 GT/s",
    "32.0 GT/s", "64.0 GT/s PCIe", "200000000", "GenuineIntel", "arm64", "gfx942", "NaN", "x" * 300,
    "\u00e9", "a b", ":", "::", "1e9", "0.5",
]  # fmt: skip

WORDS = [
    "X", "NV1", "NV2", "NV12", "NV18", "NV0", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A", "0", "15", "30",
    "XGMI", "PCIE", "GPU0", "GPU1", "GPU7", "NIC9", "-1", "99999", "0-15", "mlx5_0",
]  # fmt: skip


def injured(rng: random.Random, sample: str, data: bytes) -> bytes:
    """``data`` of the sample after an injury of a random kind."""
    if rng.random() < 0.3:
        return injured_bytes(rng, data)
    times = rng.randint(1, 4)
    if sample == "json":
        return json.dumps(injured_tree(rng, json.loads(data), times)).encode()
    if sample == "yaml":
        tree = injured_tree(rng, yaml.safe_load(data), times)
        return yaml.dump(tree, allow_unicode=True, default_flow_style=None).encode(errors="surrogatepass")
    if sample.startswith("xml"):
        return injured_xml(rng, data, times)
    return injured_text(rng, data, times)


def injured_bytes(rng: random.Random, data: bytes) -> bytes:
    """``data`` after one to four random injuries of bytes, tokens, lines or length."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if kind == 0:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            data = data[:at] + data[at + rng.randint(1, 40) :]
        elif kind == 3:
            data = data[:at] + rng.choice(TOKENS) + data[at:]
        elif kind == 4:
            data = data[: at + rng.randint(1, 200)] + data[at:]
        elif kind == 5:
            lines = data.splitlines(keepends=True)
            rng.shuffle(lines)
            data = b"".join(lines)
        elif kind == 6:
            line = rng.choice(data.splitlines(keepends=True) or [b""])
            data = data[:at] + line * rng.choice((1, 2, 50)) + data[at:]
        elif kind == 7:
            digits = [i for i, byte in enumerate(data) if 48 <= byte < 58] or [0]
            at = rng.choice(digits)
            data = data[:at] + rng.choice(TOKENS[:9]) + data[at + 1 :]
        else:
            data = data[:at] + (rng.choice(TOKENS) * rng.choice((1, 3, 2000)))[:MOST_BYTES] + data[at:]
        data = data[:MOST_BYTES]
    return data


def injured_tree(rng: random.Random, tree: Any, times: int) -> Any:
    """``tree`` with values replaced, keys removed, added or renamed, items repeated or removed."""
    for _ in range(times):
        places = list(_containers(tree))
        place = rng.choice(places)
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        kind = rng.randrange(5)
        if not keys or kind == 0:
            if isinstance(place, dict):
                place[rng.choice(["rank", "gb_per_s", "typo", "host", "duplex"])] = copy.deepcopy(
                    rng.choice(VALUES)
                )
            else:
                place.append(copy.deepcopy(rng.choice(VALUES)))
            continue
        key = rng.choice(keys)
        if kind == 1:
            del place[key]
        elif kind == 2 and isinstance(place, list):
            place.insert(rng.randrange(len(place) + 1), copy.deepcopy(place[key]))
        else:
            place[key] = copy.deepcopy(rng.choice(VALUES))
    return tree


def injured_xml(rng: random.Random, data: bytes, times: int) -> bytes:
    """``data`` with attributes replaced or removed, elements repeated, moved or removed."""
    root = ET.fromstring(data.strip())
    for _ in range(times):
        elements = list(root.iter())
        element = rng.choice(elements)
        kind = rng.randrange(6)
        keys = list(element.attrib)
        if kind <= 2 and keys:
            other = rng.choice(elements).attrib
            value = (
                rng.choice([*other.values(), *ATTRIBUTES]) if rng.random() < 0.3 else rng.choice(ATTRIBUTES)
            )
            element.attrib[rng.choice(keys)] = value
        elif kind == 3 and keys:
            del element.attrib[rng.choice(keys)]
        elif kind == 4 and len(element):
            element.remove(rng.choice(list(element)))
        elif kind == 5:
            guest = copy.deepcopy(rng.choice(elements))
            if sum(1 for _ in guest.iter()) < 200:
                element.append(guest)
    return ET.tostring(root)[:MOST_BYTES]


def injured_text(rng: random.Random, data: bytes, times: int) -> bytes:
    """``data`` with words replaced, mostly in pairs so that a matrix stays symmetric; rows removed."""
    text = data.decode()
    for _ in range(times):
        rows = [re.split(r"([ \t]+)", line) for line in text.split("\n")]
        kind = rng.randrange(4)
        if kind == 0:
            del rows[rng.randrange(len(rows))]
        elif kind == 1:
            row = rng.choice(rows)
            row[rng.randrange(len(row))] = rng.choice(WORDS)
        else:
            old, new = rng.choice(WORDS), rng.choice(WORDS)
            if kind == 3:
                i, j = rng.randrange(1, 5), rng.randrange(1, 5)
                table = [row for row in rows if row[0].startswith("GPU") and len(row) > 8]
                if i != j and max(i, j) <= len(table):
                    for a, b in ((i, j), (j, i)):
                        words = [k for k, word in enumerate(table[a - 1]) if word.strip()]
                        if b < len(words):
                            table[a - 1][words[b]] = new
            else:
                rows = [[new if word == old else word for word in row] for row in rows]
        text = "\n".join("".join(row) for row in rows)
    return text.encode()[:MOST_BYTES]


def _containers(tree: Any) -> Any:
    if isinstance(tree, dict | list):
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _containers(value)
