"""CSV tables: reading and atomic writing. A CSV file has no types: the text 0012 reads as 12."""

from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pandas as pd

from trainyard.utils.errors import MissingResultError
from trainyard.utils.files import atomic_write

_NAMES: Final = ("trial", "job", "node", "gpu", "session")  # columns with text, also where it looks like a number


def read_table(path: Path | StringIO, text: Iterable[str] = ()) -> pd.DataFrame:
    """The table in a CSV file, where these columns are text, also where it looks like a number.

    Only an empty cell is a missing value: `None` and `nan` may be values of a key.

    Raises:
        MissingResultError: the file does not exist.
    """
    types = dict.fromkeys([*_NAMES, *text], str)
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=types)
    except FileNotFoundError:
        raise MissingResultError(Path(str(path))) from None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, with 15 significant digits."""
    with atomic_write(path) as file:
        frame.to_csv(file, index=False, float_format="%.15g")


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write mappings with the same keys as the rows of a CSV."""
    write_table(pd.DataFrame(list(rows)), path)
