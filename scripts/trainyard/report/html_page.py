"""A small web page of tables and texts for the report."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

import pandas as pd

from trainyard.utils.files import atomic_write

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5rem; color: #222 }}
th {{ position: sticky; top: 0; background: white }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th {{ text-align: left; border-bottom: 2px solid #444; padding: .3rem .8rem }}
td {{ border-bottom: 1px solid #ddd; padding: .25rem .8rem; white-space: nowrap }}
tr:hover td {{ background: #f4f8fb }}
p {{ max-width: 60rem; line-height: 1.5 }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def write_page(parts: Mapping[str, pd.DataFrame | str], path: Path, *, title: str) -> None:
    """Write tables and texts, by heading, as a web page; an empty heading is omitted.

    Numbers are rounded for reading, and columns without a value are omitted.
    """
    body = [f"<h2>{escape(heading)}</h2>" * bool(heading) + _to_html(part) for heading, part in parts.items()]
    with atomic_write(path) as file:
        file.write(_PAGE.format(title=escape(title), body="\n".join(body)))


def _to_html(part: pd.DataFrame | str) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    shown = part.replace("", None).dropna(axis="columns", how="all")
    return str(shown.to_html(index=False, border=0, na_rep="", float_format=_format_number))


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
