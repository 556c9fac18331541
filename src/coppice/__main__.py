"""`python -m coppice` and the `coppice` command."""

import gc

from coppice.interrupts import loading

_OBJECTS = 50_000
"""Modules make objects by the ten thousand that stay: looking through them for garbage every 700 takes a twentieth of a
plan."""


def main() -> None:
    """Run the command line; Ctrl-C ends it with code 130, while its modules are being loaded as well."""
    gc.set_threshold(_OBJECTS)
    with loading():
        from coppice.cli import main as run

        run()


if __name__ == "__main__":
    main()
