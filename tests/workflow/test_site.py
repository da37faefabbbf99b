"""The documents as a site: built without a warning, readable, and complete in a browser without network or server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import WIDTHS, browser_or_skip, opened
from playwright.sync_api import expect
from project import ROOT

CODE = re.compile(r"<(pre|code|script|style)\b.*?</\1>|<[^>]*>", re.S)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the site, as `make site` builds it: an omitted page or a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    paths = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "scripts")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    with browser_or_skip() as browser:
        yield browser


def test_every_document_is_a_page(site):
    documents = [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    pages = [site / path.relative_to(ROOT).with_suffix(".html") for path in documents]
    assert not [page for page in [*pages, site / "index.html", site / "config/index.html"] if not page.exists()]


def test_markdown_is_rendered_as_the_repository_shows_it(site):
    """No block, link, table or list is left as text, which MkDocs reads by stricter rules than GitHub."""
    pages = {path.relative_to(site).as_posix(): CODE.sub("", path.read_text()) for path in site.rglob("*.html")}
    leftover = {name: re.findall(r".*(?:```|\]\(|\| -|^ *- ).*", text, re.M) for name, text in pages.items()}
    assert not {name: lines for name, lines in leftover.items() if lines}


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_the_screen_and_show_their_pictures(site, browser, width):
    for name in ("index.html", "docs/compare.html", "docs/options.html", "docs/architecture.html"):
        with opened(browser, site / name, width=width) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            page.wait_for_function("[...document.images].every(image => image.complete)")
            assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)"), name


@pytest.mark.slow
def test_the_search_finds_a_page_without_a_server(site, browser):
    with opened(browser, site / "index.html", width=WIDTHS[0]) as page:
        page.get_by_role("textbox", name="Search").click()
        page.keyboard.type("grace period")
        page.locator("a", has_text="Signals and grace periods").first.click()
        expect(page).to_have_url(re.compile(r"/docs/slurm\.html\?.*#signals-and-grace-periods$"))
