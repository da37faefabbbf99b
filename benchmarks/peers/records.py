"""The lines of runs.jsonl: one per run."""

import json
from pathlib import Path
from typing import Any

KEY = ("work", "peer", "repeat", "scale", "trials")


def read_runs(out: Path) -> list[dict[str, Any]]:
    """All runs; a last line that was cut off is left out."""
    file = out / "runs.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def key_of(run: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from the others."""
    return tuple(run[name] for name in KEY)
