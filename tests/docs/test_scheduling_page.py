"""docs/scheduling.md: every policy has its part, with what it says of itself."""

from __future__ import annotations

import re

import msgspec
import pytest

from coppice.iteration.policies.catalogue import POLICIES
from support.pages import page_text

PAGE = page_text("scheduling.md")


def part(name: str) -> str:
    """What stands below the heading of a policy, up to the next heading of any level."""
    found = re.search(rf"^####? {re.escape(name)}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/scheduling.md has no part on {name}"
    return found[1]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_its_part(name: str) -> None:
    policy, text = POLICIES[name], part(name)
    assert policy.about[1:] in text
    assert policy.assumes in text
    assert all(f"**{each}**" in text for each in policy.decides)
    assert ("* Stock: " in text) == (policy.stock is not None)
    assert ("iteration late" in text) == (policy.staleness > 0)
    options = re.findall(r"^\| `(\w+)` \| \S+ \| [^|]+ \| \S.* \|$", text, re.MULTILINE)
    assert options == [each.name for each in msgspec.structs.fields(policy.options)]
    commands = re.findall(r"^```sh\n(.*)\n```$", text, re.MULTILINE)
    assert len(commands) == 1
    assert name in commands[0].split()


def test_theory_is_markdown() -> None:
    """No roles of docstrings, no formula outside of a fence, and a source of every theory."""
    assert not re.search(r":\w+:`|``(?!`)(?<!```)", PAGE.replace("```", ""))
    fenced = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"^ {4}", fenced, re.MULTILINE)
    assert not re.search(r"^(\d+[.)]|[-+>]) ", fenced, re.MULTILINE), (
        "a line that starts a list or a quotation"
    )
    for section in re.split(r"^### ", fenced, flags=re.MULTILINE)[1:]:
        head = section.partition("\n\nIn `src/")[0]
        assert re.search(r"\b(19|20)\d\d\b|'\d\d\b|arXiv", head), f"no source in {head[:60]!r}"
