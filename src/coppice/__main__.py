"""`python -m coppice` and the `coppice` command."""

from coppice.interrupts import loading


def main() -> None:
    """Run the command line; Ctrl-C ends it with code 130, while its modules are being loaded as well."""
    with loading():
        from coppice.cli import main as run

        run()


if __name__ == "__main__":
    main()
