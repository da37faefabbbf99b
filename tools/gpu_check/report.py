"""What the GPU check has found: printed at once, kept in a file, and summarized in Markdown tables."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

PASS: Final = "PASS"
FAIL: Final = "FAIL"
INFO: Final = "info"  # a measurement, or a check that does not apply to this machine
NOT_RUN: Final = "not run"  # no time was left


class Finding(NamedTuple):
    """The outcome of a check."""

    check: str
    result: str
    seen: str


class Report:
    """The findings of a run and the time that it has left.

    Each finding is printed and written to `path` at once: a GPU may hang.
    """

    def __init__(self, path: Path, *, seconds: float) -> None:
        self.findings: list[Finding] = []
        self.tables: dict[str, list[dict[str, str]]] = {}
        self.running = ""  # the check that runs, or the last one
        self._path, self._seconds, self._began = path, seconds, time.monotonic()

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the time limit; negative after it."""
        return self._seconds - (time.monotonic() - self._began)

    def check(self, name: str, passed: bool, seen: object) -> None:
        """Record whether a check has passed, and what it has seen."""
        self._add(Finding(name, PASS if passed else FAIL, str(seen)))

    def inform(self, name: str, seen: object) -> None:
        """Record what nothing is expected of."""
        self._add(Finding(name, INFO, str(seen)))

    def skip(self, name: str) -> None:
        """Record that no time was left for a check or measurement."""
        self._add(Finding(name, NOT_RUN, "no time was left"))

    def add_row(self, table: str, row: Mapping[str, object]) -> None:
        """Add a row to a table; the first row determines the columns."""
        cells = {name: str(value) for name, value in row.items()}
        self.tables.setdefault(table, []).append(cells)
        self._print(f"{table}: " + ", ".join(f"{name} {value}" for name, value in cells.items() if value))

    @property
    def size(self) -> int:
        """The number of findings, and of rows of tables."""
        return len(self.findings) + sum(map(len, self.tables.values()))

    @property
    def failed(self) -> list[str]:
        """The checks that have failed or were not run."""
        return [finding.check for finding in self.findings if finding.result in (FAIL, NOT_RUN)]

    def markdown(self) -> str:
        """The tables of all findings, as in benchmarks/README.md."""
        tables = {"checks": [finding._asdict() for finding in self.findings], **self.tables}
        return "\n\n".join(f"### {name}\n\n{markdown_table(rows)}" for name, rows in tables.items() if rows)

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._print(f"{finding.result} {finding.check}: {finding.seen}")

    def _print(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {line}", flush=True)
        content = {"checks": self.findings, **self.tables}
        self._path.write_text(json.dumps(content, indent=1))


def markdown_table(rows: list[dict[str, str]]) -> str:
    """Rows of equal columns as a Markdown table."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row.get(name, "") for name in columns] for row in rows)]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in line) + " |" for line in lines
    )
