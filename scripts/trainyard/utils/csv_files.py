"""CSV tables: reading and atomic writing.

A CSV file has no types: the text 0012 reads as 12. A table with such a column of text has metadata beside it, in the
file <table>.csv-metadata.json (W3C, CSV on the Web), by which it is read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import atomic_write, write_json
from trainyard.utils.text import is_number

_DATATYPES: Final = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}  # of CSVW, by kind of numpy's types


def read_table(path: Path) -> pd.DataFrame:
    """The table in a CSV file. Only an empty cell is a missing value: `None` and `nan` may be values of a key.

    Text that looks like a number is text, as `write_table` got it, and so is the identity of a trial.

    Raises:
        MissingResultError: the file does not exist.
    """
    types: dict[str, type] = {"trial": str}
    if (metadata := _metadata(path)).exists():
        columns = json.loads(metadata.read_text())["tableSchema"]["columns"]
        types |= {column["titles"]: str for column in columns if column["datatype"] == "string"}
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=types)
    except FileNotFoundError:
        raise MissingResultError(path) from None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, with 15 significant digits, and metadata if text in it looks like numbers or booleans."""
    text = [name for name in frame if name != "trial" and _looks_typed(frame[name])]
    if text:
        columns = [
            {"titles": name, "datatype": "string" if name in text else _DATATYPES.get(frame[name].dtype.kind, "any")}
            for name in frame
        ]
        content = {"@context": "http://www.w3.org/ns/csvw", "url": path.name, "tableSchema": {"columns": columns}}
        write_json(_metadata(path), content)
    else:
        _metadata(path).unlink(missing_ok=True)
    with atomic_write(path) as file:
        frame.to_csv(file, index=False, float_format="%.15g")


def _metadata(path: Path) -> Path:
    return path.with_name(f"{path.name}-metadata.json")


def _looks_typed(values: pd.Series) -> bool:
    """Whether a column has text that a reader of CSV would take for a number or a boolean."""
    if pd.api.types.is_numeric_dtype(values):
        return False
    texts = {value for value in values if isinstance(value, str)}
    return any(text.strip().lower() in ("true", "false") or is_number(text) for text in texts)


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write mappings with the same keys as the rows of a CSV."""
    write_table(pd.DataFrame(list(rows)), path)
