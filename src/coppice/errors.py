"""Exceptions of Coppice.

    CoppiceError                    base of all; the command line prints its one sentence
    ├── InputError                  a file, option or topology cannot be used: exit code 2
    │   └── UnreachableError        some rank cannot receive from some other rank
    ├── CheckError                  a verification failed, or a plan does not fit: exit code 1
    └── MissingExtraError           an optional package or native extension is needed: exit code 2

A message is one sentence that says what was expected, what was found and where
(``$.links[3].gb_per_s``, ``topo.xml:12``), and then what to do next. Options are named as keywords in backticks
(```trees=4```, ```relay_gpus```); the command line writes its own names in their place.
"""

from __future__ import annotations


class CoppiceError(Exception):
    """Base of every error that Coppice raises on purpose."""


class InputError(CoppiceError):
    """An input (file, option, topology) is invalid."""


class UnreachableError(InputError):
    """The collective is impossible: some rank cannot reach some other rank."""


class CheckError(CoppiceError):
    """A check failed: a plan does not verify, or does not fit its target."""


class MissingExtraError(CoppiceError):
    """An optional dependency is not installed.

    >>> raise MissingExtraError.of("networkx", extra="nx")
    Traceback (most recent call last):
    coppice.errors.MissingExtraError: this needs the package networkx: run `pip install 'coppice[nx]'`.
    """

    @classmethod
    def of(cls, package: str, *, extra: str) -> MissingExtraError:
        """Error about a missing ``package`` that the extra ``extra`` installs."""
        return cls(f"this needs the package {package}: run `pip install 'coppice[{extra}]'`.")

    @classmethod
    def unbuilt(cls, extension: str, holds: str) -> MissingExtraError:
        """Error about a native extension that was not built."""
        return cls(
            f"this needs the native extension {extension} ({holds}), which this installation was built without: run "
            "`make setup` in the checkout, or `pip install .`."
        )
