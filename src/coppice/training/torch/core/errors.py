"""Errors about ranks that do not answer."""

from __future__ import annotations

from coppice.errors import CheckError


def lost_rank(
    error: BaseException, task: str, *, all_ranks: str = "all ranks", lost: str = "one"
) -> CheckError:
    r"""Error about a rank that does not answer.

    Args:
        error: What the library says.
        task: What the ranks are expected to do.
        all_ranks: Who they are.
        lost: Who does not answer.

    Examples:
        >>> print(lost_rank(RuntimeError("closed by peer\n at line 3"), "sum gradients"))  # doctest: +ELLIPSIS
        expected all ranks to sum gradients, found one that does not answer (closed by peer): start the training...
    """
    return CheckError(
        f"expected {all_ranks} to {task}, found {lost} that does not answer ({reason_of(error)}): start the training "
        "again from its last checkpoint."
    )


def reason_of(error: BaseException) -> str:
    """The first line of an error's message, or the error's kind."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
