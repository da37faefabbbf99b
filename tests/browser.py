"""A headless Chromium without network, and what pages do in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Frame, Page, Route, expect, sync_playwright
from slurm_cluster.prerequisites import SYSTEM_PATH, PrerequisiteMissing, install_packages
from slurm_cluster.waiting import PATIENCE_SECONDS

NO_BROWSER = "no browser: "
LOCAL = ("file:", "data:", "blob:", "about:")
PATIENCE_MS = 1000 * PATIENCE_SECONDS
WIDTHS = (1280, 768, 390)  # pixels: a screen, a tablet and a telephone
THEMES = ("light", "dark")


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
def opened(browser: Browser, path: Path, *, width: int, theme: Literal["light", "dark"] = "light") -> Iterator[Page]:
    """A page from a file; at the end, verify that it requested nothing from a network and logged no error."""
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, color_scheme=theme)
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


# Texts of a page, or of a part of it, whose contrast with what is behind them is below 4.5: what the WCAG demands for
# normal text.
PALE_TEXTS = """(part) => {
    const parse = (color) => { const found = color.match(/[\\d.]+/g).map(Number); return [...found, 1].slice(0, 4); };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
    const light = (color) => color.slice(0, 3).map((each) => each / 255).map(
        (each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4
    ).reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0);
    const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
    const behind = (each) => !each ? canvas
        : over(parse(getComputedStyle(each).backgroundColor), behind(each.parentElement));
    const contrast = (each) => {
        const [low, high] = [light(behind(each)), light(parse(getComputedStyle(each).color))].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    return [...(part ?? document.body).querySelectorAll("*:not(script, style)")].filter(
        (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    ).filter(
        (each) => each.checkVisibility() && !each.closest(".disabled") && contrast(each) < 4.5
    ).map((each) => each.innerText);
}"""
