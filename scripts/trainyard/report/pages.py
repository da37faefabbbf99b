"""Web pages of the report: texts, and tables that sort, filter and highlight the best row, without network."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distribution
from itertools import count
from pathlib import Path
from typing import Any, Final

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trainyard.utils.files import atomic_write

ROWS_PER_PAGE: Final = 25
MAX_ROWS: Final = 1000  # of a table: 0.4 MB for trials of a sweep, which a browser reads before it shows any
LONG_TEXT: Final = 32  # letters, above which the texts of a column are wrapped
_LOADING: Final = re.compile(r"Loading ITables.*?\?\)", re.DOTALL)
_NAME_IN_HEADER: Final = re.compile("(?<=<th>)[^<]*(?=</th>)")
MIN_FILTERED: Final = 5  # rows, from which on each column has a filter; a larger table also has a search field
# Of DataTables, called for each cell: marks the row to highlight, empties cells without a value, and links trials.
_MARK_CELL: Final = """function (cell, value, row, index) {{
    if (index === {best}) cell.classList.add("best");
    if (cell.textContent === "NaN") cell.textContent = "";
    decorate(cell, document.getElementById("{table}").closest("article"));
}}"""
# Of DataTables, called for each cell that a CSV file gets: all digits of a number, nothing for a missing one, and text.
_CSV_CELL: Final = """function (value) {
    if (typeof value !== "string") return Number.isNaN(value) ? "" : value;
    return new DOMParser().parseFromString(value, "text/html").documentElement.textContent;
}"""


@dataclass(frozen=True)
class ReportTable:
    """A table of a page; `best` is the position of the row to highlight, if any."""

    frame: pd.DataFrame
    best: int | None = None
    has_trials: bool = False  # whether its rows are trials, of which charts select some


@dataclass(frozen=True)
class Charts:
    """What a function of `templates/charts.js` draws."""

    function: str
    data: dict[str, Any]


Part = ReportTable | Charts | str
Parts = Mapping[str, Part]  # headings, and what is below them


@dataclass(frozen=True)
class StudyPage:
    """A sweep or a scaling study on a page: what it found, and what is below that."""

    title: str
    answer: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)  # by label
    cost: str = ""
    failures: Sequence[str] = ()
    next_steps: Sequence[str] = ()
    more: Sequence[str] = ()  # how sure the answer is, and the runner-up
    rows: Sequence[Sequence[str]] = ()  # of a small table, whose first row is its header
    more_rows: Sequence[Sequence[str]] = ()  # of the table on its own page
    pictures: Mapping[str, str] = field(default_factory=dict)  # PNGs as data URIs, by what they show
    parts: Parts = field(default_factory=dict)
    operations: Parts = field(default_factory=dict)  # below the facts, in a fold
    trials: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each: the link to its folder, its command


def write_page(studies: Sequence[StudyPage], path: Path) -> None:
    """Write studies as one web page, which needs no network."""
    with atomic_write(path) as file:
        file.write(render_page(studies))


def render_page(studies: Sequence[StudyPage], *, version: str = "") -> str:
    """A web page of studies: answers, charts and tables by heading, where an empty heading is omitted.

    Numbers are rounded for reading, and columns without a value are omitted. Of a table with more than MAX_ROWS rows,
    the page has the first ones, and says so. With a `version`, the page loads itself again when that of its server
    differs.
    """
    numbers = count(1)
    kinds = {type(part) for study in studies for part in (*study.parts.values(), *study.operations.values())}
    rendered = []
    for study in studies:
        parts = [_to_html(*each, next(numbers), study) for each in study.parts.items()]
        rendered.append((study, parts, [_to_html(*each, next(numbers), study) for each in study.operations.items()]))
    title = studies[0].title if len(studies) == 1 else "Trainyard"
    return render(
        "page.html.jinja2", title=title, studies=rendered, library=_library(frozenset(kinds)), version=version
    )


def render(name: str, **values: Any) -> str:
    """A template of `templates/` with these values, which are escaped unless they are `Markup`."""
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template(name).render(values)


def format_number(value: float) -> str:
    """A number with four digits, or without decimals and with separators from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _to_html(heading: str, part: Part, number: int, study: StudyPage) -> tuple[str, str]:
    """The heading and the HTML of a part of a page."""
    if isinstance(part, str):
        return heading, Markup("<p>{}</p>").format(part)
    if isinstance(part, Charts):
        return heading, Markup('<div class="charts" data-function="{}" data-spec="{}"></div>').format(
            part.function, _pack(json.dumps(part.data))
        )
    return heading, _table_to_html(part, f"table-{number}", re.sub(r"\W+", "-", f"{study.title} {heading}".lower()))


def _table_to_html(part: ReportTable, table_id: str, name: str) -> str:
    """A table that sorts and filters; `name` is that of its CSV file."""
    from itables import JavascriptFunction, to_html_datatable

    shown = part.frame.replace("", None).dropna(axis="columns", how="all")
    booleans = shown.select_dtypes("bool").replace({True: "yes", False: "no"})
    texts = shown.select_dtypes(exclude=["number", "bool"]).astype(object).fillna("")
    frame = shown.assign(**booleans, **texts).head(MAX_ROWS)
    left_out = len(part.frame) - len(frame)
    note = (
        f"The first {MAX_ROWS:,} of {len(part.frame):,} rows; the CSV file of this table has all." if left_out else ""
    )
    lengths = [frame[name].astype(str).str.len().max() for name in frame]
    long_texts = [number for number, length in enumerate(lengths) if length > LONG_TEXT]
    filters: dict[str, Any] = {"columnControl": ["order", "searchDropdown"], "ordering": {"indicators": False}}
    export = {"orthogonal": "sort", "format": {"body": JavascriptFunction(_CSV_CELL)}}
    csv = {"extend": "csvHtml5", "filename": name, "exportOptions": export}
    mark = JavascriptFunction(_MARK_CELL.format(best="null" if part.best is None else part.best, table=table_id))
    with pd.option_context("display.float_format", format_number, "display.max_colwidth", None):
        table = to_html_datatable(
            frame,
            table_id=table_id,
            connected=False,
            display_logo_when_loading=False,
            maxBytes=0,
            showIndex=False,
            scrollX=True,
            classes="display compact trials" if part.has_trials else "display compact",
            text_in_header_can_be_selected=False,
            fixedColumns={"start": 1},
            pageLength=ROWS_PER_PAGE,
            buttons=[csv, "pageLength"] if len(frame) > ROWS_PER_PAGE else [csv],
            lengthMenu=[MIN_FILTERED, ROWS_PER_PAGE, 4 * ROWS_PER_PAGE],
            columnDefs=[{"targets": "_all", "createdCell": mark}, {"targets": long_texts, "className": "long"}],
            **(filters if len(frame) >= MIN_FILTERED else {}),
        )
    table = _LOADING.sub("The table needs JavaScript.", table)  # seen for a moment, too
    # The names of columns may be broken at dots and underscores.
    table = _NAME_IN_HEADER.sub(lambda name: re.sub("[._]", r"\g<0><wbr>", name[0]), table)
    paragraph = Markup("<p>{}</p>").format(note) if note else Markup()
    return paragraph + Markup(table)


@cache
def _library(parts: frozenset[type]) -> str:
    """The scripts and styles of the tables and charts of a page, packed: 1.1 instead of 3.2 MB. "" without both."""
    library = ""
    if ReportTable in parts:
        from itables import options
        from itables.javascript import generate_init_offline_itables_html

        library = generate_init_offline_itables_html(options.dt_bundle)
    if Charts in parts:
        snakemake = distribution("snakemake")  # whose own report draws with them; it takes 0.1 s to import
        files = (f"snakemake/assets/data/{name}/{name}.js" for name in ("vega", "vega-lite", "vega-embed"))
        scripts = (snakemake.locate_file(file).read_text() for file in files)
        library += "".join(f"<script>{script}</script>" for script in scripts)
    return _pack(library) if library else ""


def _pack(text: str) -> str:
    """A text as base64 of gzip, which the page unpacks."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
