"""Settings of the site that `make site` builds from the Markdown of this repository, by Sphinx with MyST.

The pages are those that a repository shows: plain Markdown. What stands where in the site follows from the links on the
pages in ``INDEXES``, so that a page which none of them names is a warning, which fails.
"""

from __future__ import annotations

import gc
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from messages import filled

# Trees of all pages are kept; going over them again and again for what nothing refers to costs a tenth of the time.
gc.set_threshold(50_000, 20, 50)

INDEXES = ("docs/index", "docs/questions", "benchmarks/README")

project = "Coppice"
version = release = version_of("coppice")
html_title = f"Coppice {release}"
root_doc = "docs/index"
include_patterns = ["docs/**.md", "benchmarks/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_extra_path = ["site"]
html_copy_source = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
suppress_warnings = ["myst.header"]  # tables of benchmarks stand below a heading of level 3 wherever they are


def list_pages(_app: Any, page: str, source: list[str]) -> None:
    """Append the tables of contents that the links of an index make, a section each; readers of the page see none."""
    if page not in INDEXES:
        return
    listed: dict[str, None] = {}
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        links = re.findall(r"\]\(([^)#:\s]+)\.md\)", section)
        new = [link for link in dict.fromkeys(links) if link not in listed and _under(page, link)]
        listed.update(dict.fromkeys(new))
        if new:
            title = section.partition("\n")[0].lstrip("# ")
            source[0] += "\n".join(["\n", "```{toctree}", ":hidden:", f":caption: {title}", *new, "```", ""])


def _under(page: str, link: str) -> bool:
    """Whether a page belongs below an index: `docs/index` lists all but what the others do, these their own folder."""
    return page == root_doc or "/" in link or page.startswith("benchmarks/")


def fill_messages(_app: Any, page: str, source: list[str]) -> None:
    """Put every message of the program on the page of messages."""
    if page == "docs/messages":
        source[0] = filled(source[0])


def setup(app: Any) -> None:
    """Connect the indexes, and the page of all messages."""
    app.connect("source-read", list_pages)
    app.connect("source-read", fill_messages)
