"""The lines of runs.jsonl: one per run."""

from pathlib import Path

from trainyard.utils.event_log import Event, read_events

KEY = ("work", "peer", "repeat", "scale", "trials")
FILE = "runs.jsonl"


def read_runs(out: Path) -> list[Event]:
    """All runs; a last line that was cut off is left out."""
    return read_events(out / FILE)


def key_of(run: Event) -> tuple[object, ...]:
    """What distinguishes a run from the others."""
    return tuple(run[name] for name in KEY)


def over_limit_before(run: Event, runs: list[Event]) -> bool:
    """Whether an earlier repeat was not over when its limit was reached."""
    same = [each for each in runs if key_of({**each, "repeat": run["repeat"]}) == key_of(run)]
    return any(each["reason"].startswith("not over") for each in same)
