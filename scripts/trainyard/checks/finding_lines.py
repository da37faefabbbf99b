"""Findings on the terminal: name, verdict and message, with the remedy below."""

import sys
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainyard.checks.findings import Finding

SIGNS: Final = {
    "ok": "[green]ok[/]",
    "warns": "[yellow]warning[/]",
    "fails": "[bold red]FAILS[/]",
    "unknown": "[yellow]unknown[/]",
}
LOG_WIDTH: Final = 100


def log_console() -> Console:
    """A console as wide as the terminal, or in a log of a fixed width."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


def finding_line(finding: Finding, *, last_remedy: str = "", notes: bool = False, name_width: int = 22) -> Table:
    """A finding as a row; below it the remedy, unless the row before has the same.

    With `notes`, also the remedies of passed checks.
    """
    row = Table.grid(padding=(0, 2))
    row.add_column(width=name_width, overflow="fold")
    row.add_column(width=7)
    row.add_column(overflow="fold")
    row.add_row(escape(finding.name), SIGNS[finding.verdict], escape(finding.message))
    if finding.remedy not in ("", last_remedy) and (notes or finding.verdict != "ok"):
        row.add_row("", "", f"[italic]-> {escape(finding.remedy)}[/]")
    return row
