"""Message sizes as nccl-tests writes them: ``64K`` is 65,536 bytes, ``1K:4G`` doubles from one to the other."""

from __future__ import annotations

from typing import Annotated

import typer

from coppice.text import parse_size, parse_sizes, short_size

__all__ = ["SizeOption", "SizesOption", "parse_size", "parse_sizes", "short_size"]

SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        "-s",
        metavar="BYTES",
        help="Message size M of the collective: bytes, or with K, M, G, T in powers of 1024, such as 64M.",
    ),
]
SizesOption = Annotated[
    str,
    typer.Option(
        "--sizes",
        metavar="LIST",
        help="Message sizes: a list such as 1K,64K,1M, or FIRST:LAST[:FACTOR], such as 1K:4G or 1K:4G:4 "
        "[factor: 2].",
    ),
]
