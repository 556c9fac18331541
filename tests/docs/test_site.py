"""What `make site` builds: no warning, no dead link, no page that no index reaches, nothing from the network."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.browser import Browser, needs_browser
from support.pages import PAGES
from support.paths import ROOT

pytestmark = pytest.mark.slow  # tests/test_docs.py follows the links of pages as they are

for package in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(package, reason=f"{package} is not installed: make setup")

SITE = [*PAGES, *sorted((ROOT / "benchmarks").glob("*.md")), ROOT / "CHANGELOG.md"]


class Links(HTMLParser):
    """What a page links to, what it loads, and the places in it that have a name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if name := given.get("id"):
            self.names.add(name)
        if target := given.get("href"):
            (self.links if tag == "a" else self.loads).add(target)
        if target := given.get("src"):
            self.loads.add(target)


@pytest.fixture(scope="module", params=["basic", "furo"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew with warnings as errors.

    The theme of `make site` puts links to all pages on each, a third of the work; with the plain one, pages are reached
    by what stands on them.
    """
    made = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-c", "docs", "-d", str(made / "doctrees")]
    words += ["-D", f"html_theme={request.param}", ".", str(made / "pages")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return made / "pages"


@pytest.fixture(scope="module")
def links(site: Path) -> dict[Path, Links]:
    return {page: Links(page.read_text()) for page in site.rglob("*.html")}


def test_every_page_is_built(site: Path) -> None:
    for page in SITE:
        assert (site / page.relative_to(ROOT).with_suffix(".html")).is_file(), page


def test_every_page_is_reached_from_the_first(site: Path, links: dict[Path, Links]) -> None:
    reached, todo = set(), [site / "index.html"]
    todo.append(site / "docs" / "index.html")
    while todo:
        page = todo.pop()
        if page in reached or page not in links:
            continue
        reached.add(page)
        todo += [(page.parent / unquote(urlsplit(link).path)).resolve() for link in links[page].links]
    missing = {page.relative_to(ROOT) for page in SITE} - {
        page.relative_to(site).with_suffix(".md") for page in reached
    }
    assert not missing


def test_no_link_is_dead(links: dict[Path, Links]) -> None:
    dead, tried = [], 0
    for page, found in links.items():
        for link in found.links | found.loads:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            named = (
                not parts.fragment or target not in links or unquote(parts.fragment) in links[target].names
            )
            tried += 1
            if not target.is_file() or not named:
                dead.append(f"{page.name}: {link}")
    assert tried > 1000
    assert not dead


def test_nothing_is_loaded_from_the_network(links: dict[Path, Links]) -> None:
    assert not {load for found in links.values() for load in found.loads if urlsplit(load).netloc}


def test_the_index_lists_each_page_once() -> None:
    for name in ("index.md", "questions.md"):
        listed = re.findall(r"\]\(([^)#:\s]+\.md)\)", (ROOT / "docs" / name).read_text())
        pages = [link for link in listed if name == "index.md" or "/" in link]
        assert len(pages) == len(set(pages)), name


def test_pages_that_the_repository_shows_have_no_directives() -> None:
    """But for the page of the Python interface, which the site fills."""
    for page in SITE:
        assert page.name == "api.md" or "```{" not in page.read_text(), page


@needs_browser
def test_the_search_finds(site: Path) -> None:
    """Without a server: from the files alone."""
    with Browser() as browser:
        browser.open(site / "search.html")
        browser.ask("Search.performSearch('bottleneck cut')")
        for _ in range(600):
            found = browser.ask(
                "[...document.querySelectorAll('#search-results li a')].map(a => a.textContent)"
            )
            if "How it works" in found:
                break
            time.sleep(0.1)
    assert "How it works" in found
