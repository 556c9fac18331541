"""C++ files include what they use, themselves or through a header of the core: they are built many in one file."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from coppice.tuning.building import compiler_found
from support.paths import ROOT

CORE = ROOT / "cpp"
FILES = sorted(
    path for path in CORE.glob("*/*") if path.suffix in (".cc", ".h") and path.name != "standard.h"
)

STANDARD = {
    "algorithm": r"std::(?:sort|stable_sort|min_element|max_element|lower_bound|upper_bound|reverse|fill|fill_n|"
    r"all_of|any_of|none_of|count_if|find_if|next_permutation|nth_element|binary_search|is_sorted|unique|rotate)\b",
    "array": r"std::array\b",
    "atomic": r"std::atomic",
    "bit": r"std::(?:bit_cast|popcount|countr_zero|countl_zero|bit_width|bit_ceil|has_single_bit)\b",
    "cerrno": r"\berrno\b",
    "chrono": r"std::chrono\b",
    "climits": r"\b(?:INT|UINT|LONG)_(?:MIN|MAX)\b",
    "cmath": r"std::(?:sqrt|ceil|floor|isnan|isfinite|ldexp|frexp|log2|lround|llround|signbit)\b",
    "condition_variable": r"std::condition_variable",
    "cstdio": r"std::(?:printf|fprintf|snprintf|remove)\b",
    "cstdlib": r"std::(?:getenv|abort|exit|strtoul|strtoull|atoi)\b",
    "cstring": r"std::(?:memcpy|memset|memcmp|memmove|strlen|strcmp|strerror)\b",
    "deque": r"std::deque\b",
    "fcntl.h": r"\b(?:O_RDWR|O_CREAT|O_RDONLY|O_NONBLOCK|F_SETFL)\b",
    "fstream": r"std::[io]?fstream\b",
    "functional": r"std::function\b",
    "limits": r"std::numeric_limits\b",
    "map": r"std::(?:multi)?map\b",
    "memory": r"std::(?:unique_ptr|shared_ptr|make_unique|make_shared)\b",
    "mutex": r"std::(?:mutex|lock_guard|unique_lock|scoped_lock|once_flag)\b",
    "numeric": r"std::(?:iota|accumulate|gcd|lcm|partial_sum|reduce)\b",
    "optional": r"std::(?:optional|nullopt)\b",
    "poll.h": r"\b(?:pollfd|POLLIN)\b",
    "queue": r"std::(?:priority_)?queue\b",
    "random": r"std::(?:mt19937|uniform_|bernoulli_|random_device)",
    "set": r"std::(?:multi)?set\b",
    "span": r"std::span\b",
    "sstream": r"std::[io]?stringstream\b",
    "stdexcept": r"std::(?:runtime_error|invalid_argument|logic_error|out_of_range|length_error)\b",
    "string": r"std::(?:string|to_string)\b",
    "string_view": r"std::string_view\b",
    "sys/mman.h": r"\b(?:mmap|MAP_SHARED|munmap)\b",
    "sys/socket.h": r"\b(?:sockaddr_storage|AF_INET|SOCK_DGRAM|SOCK_STREAM|recvmmsg|sendmmsg|setsockopt)\b",
    "sys/wait.h": r"\bwaitpid\b",
    "thread": r"std::(?:thread|this_thread)\b",
    "tuple": r"std::(?:tuple|tie|make_tuple)\b",
    "unordered_map": r"std::unordered_map\b",
    "unordered_set": r"std::unordered_set\b",
    "vector": r"std::vector\b",
}
"""Headers of the system, and what shows that a file uses one."""

TYPE = re.compile(
    r"^ *(?:class|struct|enum class|enum|using) ([A-Z]\w+)(?: (?:final |: |\{|=)|;)", re.MULTILINE
)
"""What declares a type."""


@cache
def code(path: Path) -> str:
    """The text of a file without comments and strings."""
    return re.sub(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: '""' if m[0][0] == '"' else "", path.read_text()
    )


@cache
def included(path: Path) -> frozenset[str]:
    """The headers that a file includes, by the name that it says."""
    return frozenset(re.findall(r'^#include [<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE))


@cache
def reached(path: Path) -> frozenset[str]:
    """The headers that a file includes, and those that headers of the core include for it."""
    found: set[str] = set()
    todo = [path]
    while todo:
        for name in included(todo.pop()) - found:
            found.add(name)
            if (CORE / name).is_file():
                todo.append(CORE / name)
    return frozenset(found)


@cache
def types(path: Path) -> frozenset[str]:
    """The types that a file declares."""
    return frozenset(TYPE.findall(code(path)))


@cache
def headers_of_types() -> dict[str, str]:
    """The header of each type that is declared in one only."""
    places: dict[str, set[str]] = {}
    for path in FILES:
        for name in types(path):
            places.setdefault(name, set()).add(path.relative_to(CORE).as_posix())
    return {name: next(iter(where)) for name, where in places.items() if len(where) == 1}


def missing(path: Path) -> list[str]:
    """What a file uses of headers that it does not reach."""
    text, headers = code(path), reached(path) | {path.relative_to(CORE).as_posix()}
    lacking = [
        f"<{name}>" for name, used in STANDARD.items() if name not in headers and re.search(used, text)
    ]
    for name in sorted(set(re.findall(r"(?<![.>\w])[A-Z]\w+", text)) & headers_of_types().keys()):
        parameter = re.search(rf"\b(?:class|typename|struct) {name}\b", text)
        if not parameter and headers_of_types()[name] not in headers:
            lacking.append(f"{name} of {headers_of_types()[name]}")
    return lacking


def test_files_include_what_they_use() -> None:
    lacking = {path.relative_to(CORE).as_posix(): missing(path) for path in FILES}
    assert not {path: what for path, what in lacking.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(CORE).as_posix())
def test_files_compile_by_themselves(path: Path) -> None:
    compiler = compiler_found(language="C++20")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    words = ["-std=c++20", "-fsyntax-only", "-w", f"-I{CORE}", "-x", "c++", str(path)]
    done = subprocess.run([*compiler, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
