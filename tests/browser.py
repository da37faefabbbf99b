"""A headless Chromium without network, and what pages do in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Frame, Page, Route, expect, sync_playwright
from slurm_cluster.prerequisites import SYSTEM_PATH, PrerequisiteMissing, install_packages
from slurm_cluster.waiting import PATIENCE_SECONDS

NO_BROWSER = "no browser: "
LOCAL = ("file:", "data:", "blob:", "about:")
PATIENCE_MS = 1000 * PATIENCE_SECONDS
WIDTHS = (1400, 420)  # pixels: a screen, and a telephone


def find_chromium() -> str:
    """The path of Debian's Chromium, which root installs; raise PrerequisiteMissing if there is none."""
    if not (found := shutil.which("chromium", path=SYSTEM_PATH)):
        if os.geteuid() != 0:
            raise PrerequisiteMissing("there is no chromium, and only root can install it: `apt-get install chromium`")
        install_packages(["chromium"], needed_by="the test of the report")
        found = shutil.which("chromium", path=SYSTEM_PATH)
    if not found:
        raise PrerequisiteMissing(f"the package chromium is installed, but not its program in {SYSTEM_PATH}")
    return found


@contextmanager
def browser_or_skip() -> Iterator[Browser]:
    """A browser; on machines without one, skip the test or, under CI, fail."""
    try:
        program = find_chromium()
    except PrerequisiteMissing as missing:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"{NO_BROWSER}{missing}")
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MS)  # otherwise 5 s
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"], timeout=PATIENCE_MS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, path: Path, *, width: int) -> Iterator[Page]:
    """A page from a file; at the end, verify that it requested nothing from a network and logged no error."""
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    context.set_default_timeout(PATIENCE_MS)
    page, remote, errors = context.new_page(), [], []

    def handle(route: Route) -> None:
        if route.request.url.startswith(LOCAL):
            route.continue_()
        else:
            route.abort()

    context.route("**/*", handle)
    context.on("request", lambda request: None if request.url.startswith(LOCAL) else remote.append(request.url))
    context.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    page.goto(path.as_uri())
    yield page
    assert not remote, "requests to a network"
    assert not errors, "errors in the browser's console"
    context.close()


def wait_for_tables(page: Page | Frame) -> None:
    """Wait until all tables of a page can be sorted and filtered."""
    page.wait_for_function("""document.querySelectorAll('table[id^="table-"]:not(.dataTable)').length == 0""")
