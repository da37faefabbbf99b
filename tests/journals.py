"""Events of a journal that a test has in memory."""

from collections.abc import Iterable
from typing import Any

from trainyard.planning.journal import Event, decode


def decode_all(records: Iterable[dict[str, Any]]) -> list[Event]:
    """The events of JSON objects; unknown kinds are skipped."""
    return [event for record in records if (event := decode(record)) is not None]
