"""Patch NCCL's headers for NVRTC, so that exported kernels compile without nvcc or a host compiler.

``nccl_device.h`` asks for headers of the system, and its structures for network cards are packed by attributes behind
their bodies, which NVRTC leaves aside: their layout would be another one than the library's. A copy of the headers gets
small stand-ins for those of the system, and the attributes where NVRTC heeds them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from coppice.errors import InputError
from coppice.files import write_atomically

_STANDARD = "namespace std {\nusing namespace ::cuda::std;\n}\n"
_INTEGERS = "".join(
    f"using cuda::std::{name};\n"
    for name in (
        *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "intptr_t",
        "uintptr_t",
    )
)
_STAND_INS = {
    "algorithm": "#if __has_include(<cuda/std/algorithm>)\n#include <cuda/std/algorithm>\n#else\n"
    f"#include <cuda/std/__algorithm_>\n#endif\n{_STANDARD}",
    "assert.h": "#include <cuda/std/cassert>\n",
    "cassert": "#include <cuda/std/cassert>\n",
    "cstddef": f"#include <stddef.h>\n{_STANDARD}",
    "cstdint": f"#include <stdint.h>\n{_STANDARD}",
    "cstring": "",
    "errno.h": "#define EIO 5\n#define EAGAIN 11\n#define ENOMEM 12\n#define EBUSY 16\n#define EINVAL 22\n",
    "limits.h": "#include <cuda/std/climits>\n",
    "linux/types.h": "#include <stdint.h>\n"
    + "".join(f"using __u{bits} = uint{bits}_t;\n" for bits in (8, 16, 32, 64))
    + "".join(f"using __be{bits} = uint{bits}_t;\n" for bits in (16, 32, 64)),
    "math.h": "",
    "new": "",
    "stdbool.h": "",
    "stddef.h": "#include <cuda/std/cstddef>\nusing cuda::std::ptrdiff_t;\nusing cuda::std::size_t;\n",
    "stdint.h": f"#include <cuda/std/cstdint>\n{_INTEGERS}",
    "stdio.h": "",
    "stdlib.h": "",
    "string.h": "",
    "type_traits": f"#include <cuda/std/type_traits>\n{_STANDARD}",
    "utility": f"#include <cuda/std/utility>\n{_STANDARD}",
}
"""Headers of the system, as far as NCCL's use them; the types are those of CUDA's C++ library."""

_FIRST = """\
#include <cuda/std/type_traits>
#define typeof(x) cuda::std::remove_reference_t<decltype(x)>
#define ACCESS_ONCE(x) (*(volatile typeof(x)*)&(x))
#define __builtin_memcpy memcpy
#define NCCL_GIN_EFA_GDA_ENABLE 0  // is written in GNU's C
"""
_ATTRIBUTE = r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)"
_BEHIND = re.compile(rf"\}}(\s*)((?:{_ATTRIBUTE}\s*)+)")
_HOST = re.compile(r"(?<!__device__ )\b__host__ (?!__device__)")
_WORDS = re.compile(r"\[sizeof\(T\) / (\d+)\]")
_HEAD = re.compile(r"\b(struct|union)(\s+\w+)?\s*$")


def write_nvrtc_headers(nccl: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Write NCCL's headers patched for NVRTC.

    Options of NVRTC are then ``-std=c++17 -default-device -arch=sm_90`` and ``-I`` of the folder, of CUDA's headers and
    of its C++ library (``cuda/std``). Network cards of EFA that GPUs drive by themselves are left out.

    Args:
        nccl: Folder that holds ``nccl.h`` and ``nccl_device``, of NCCL 2.28 or later.
        folder: Where to write them; made if it is not there.
    """
    here, there = Path(nccl), Path(folder)
    if not (here / "nccl.h").is_file() or not (here / "nccl_device").is_dir():
        raise InputError(
            f"expected nccl.h and nccl_device of NCCL 2.28 or later in {str(nccl)[:200]}, found no such headers."
        )
    written = {name: f"#pragma once\n{text}" for name, text in _STAND_INS.items()}
    for path in (*here.glob("nccl*.h"), *(here / "nccl_device").rglob("*.*h")):
        text = mended_header(path.read_text(encoding="utf-8", errors="replace"))
        written[path.relative_to(here).as_posix()] = text
    written["nccl.h"] = f"#ifndef COPPICE_NVRTC\n#define COPPICE_NVRTC\n{_FIRST}#endif\n{written['nccl.h']}"
    for name, text in written.items():
        place = there / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {place.parent}: {error.strerror}.") from error
        write_atomically(place, text.encode())


def mended_header(text: str) -> str:
    r"""Move trailing attributes in front of structures, and drop host functions and zero-length arrays.

    Examples:
        >>> mended_header("struct a {\n  char b;\n} __attribute__((packed)) c;\n")
        'struct __attribute__((packed)) a {\n  char b;\n} c;\n'
    """
    text, at = _WORDS.sub(r"[(sizeof(T) + \1 - 1) / \1]", _HOST.sub("", text)), 0
    while found := _BEHIND.search(text, at):
        at, open_ = found.start(), 0
        for place in range(found.start(), -1, -1):
            open_ += (text[place] == "}") - (text[place] == "{")
            if not open_:
                at = place
                break
        head = _HEAD.search(text, 0, at)
        if head is None:
            at = found.end()
            continue
        attributes = f" {found[2].strip()}"
        before, body = text[: head.end(1)] + attributes, text[head.end(1) : found.start() + 1]
        at = len(before) + len(body)
        text = before + body + found[1] + text[found.end() :]
    return text
