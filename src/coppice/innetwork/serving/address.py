"""Where a switch is, and the secret that it shares with its workers."""

from __future__ import annotations

import os
from pathlib import Path

from coppice.errors import InputError

SWITCH_VARIABLE = "COPPICE_SWITCH"
"""Where the switch is, as HOST:PORT."""

SECRET_VARIABLE = "COPPICE_SWITCH_SECRET"
"""File with the secret of the switch."""


def parse_address(text: str, *, option: str = "the switch") -> tuple[str, int]:
    """Host and port.

    Args:
        text: Such as ``127.0.0.1:9000``.
        option: What it was given to, for messages.

    Examples:
        >>> parse_address("127.0.0.1:9000")
        ('127.0.0.1', 9000)
        >>> parse_address("9000")
        Traceback (most recent call last):
        coppice.errors.InputError: expected HOST:PORT for the switch, such as 127.0.0.1:9000, found '9000'.
    """
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise InputError(f"expected HOST:PORT for {option}, such as 127.0.0.1:9000, found {text!r}.")
    return host, int(port)


def read_secret(path: str | os.PathLike[str] | None) -> bytes:
    """The bytes of a file, without white space at its ends; nothing where there is no file.

    Without a secret, packets are sealed with a key that everybody knows: that keeps out what comes by accident, not
    those who mean harm.
    """
    if path is None:
        return b""
    secret = Path(path).read_bytes().strip()
    if not 0 < len(secret) <= 1 << 16:
        raise InputError(
            f"expected a secret of 1 to 65536 bytes in {os.fspath(path)}, found {len(secret)}: write 16 random bytes."
        )
    return secret
