"""The report: one page with all studies as their journals have them now, in a file or from a server."""

import re
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Final
from wsgiref.types import StartResponse, WSGIEnvironment

from trainyard.config.config import Config
from trainyard.report.pages import StudyPage, render_page, write_page
from trainyard.report.study_pages import current_study, scaling_study

_TITLE: Final = re.compile(r"^<article .*>\n<h\d>(.*)</h\d>$", re.MULTILINE)  # of a study on a page


def write_report(config: Config, results: Path, page: Path) -> list[str]:
    """Write the page; returns the titles of the studies that the one in its place had, and this one has not."""
    before = _TITLE.findall(page.read_text(errors="replace")) if page.exists() else []
    studies = [current_study(config, name, results, page) for name in config.sweeps] + _scaling(config, results)
    write_page(studies, page)
    return [title for title in before if title not in {study.title for study in studies}]


def _scaling(config: Config, results: Path) -> list[StudyPage]:
    return [scaling_study(config, name, results) for name in config.scaling]


class LivePage:
    """The page for a browser, which asks for its `version` and loads it again once the results have another one."""

    def __init__(self, config: Config, results: Path) -> None:
        self._config = config
        self._results = results
        self._lock = Lock()
        self._sweeps: dict[str, tuple[str, StudyPage]] = {}  # with their versions
        self._page = ("", "")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        kind = "text/plain"
        text = self._version("*")
        if environ["PATH_INFO"] != "/version":
            kind = "text/html"
            text = self._render(text)
        start_response("200 OK", [("Content-Type", f"{kind}; charset=utf-8"), ("Cache-Control", "no-store")])
        return [text.encode()]

    def _version(self, name: str) -> str:
        """A text that differs once a journal of this sweep, or a table of a scaling study, has."""
        patterns = (f"sweeps/{name}/*/*.jsonl", "scaling/*/*.csv")
        stats = [path.stat() for pattern in patterns for path in self._results.glob(pattern)]
        return f"{sum(each.st_size for each in stats)}-{max((each.st_mtime_ns for each in stats), default=0)}"

    def _render(self, version: str) -> str:
        with self._lock:
            if self._page[0] == version:
                return self._page[1]
            for name in self._config.sweeps:
                own = self._version(name)
                if name not in self._sweeps or self._sweeps[name][0] != own:
                    self._sweeps[name] = own, current_study(self._config, name, self._results, None)
            sweeps = [study for _, study in self._sweeps.values()]
            self._page = version, render_page([*sweeps, *_scaling(self._config, self._results)], version=version)
            return self._page[1]
