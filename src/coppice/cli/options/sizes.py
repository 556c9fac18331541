"""The options that take message sizes."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["SizeOption", "SizesOption"]

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
