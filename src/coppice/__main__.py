"""`python -m coppice` and the `coppice` command."""


def main() -> None:
    """Run the command line."""
    from coppice.cli import main as run

    run()


if __name__ == "__main__":
    main()
