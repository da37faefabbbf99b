"""A sweep that was written for another tool, as a config of Trainyard with comments on what it cannot have."""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainyard.checks.program_checks import CheckedStudy
from trainyard.checks.script_checks import check_script_source
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError, write_yaml
from trainyard.config.placeholders import STYLES, TRIAL_PLACEHOLDERS
from trainyard.config.sweep import RESERVED_COLUMNS
from trainyard.utils.errors import UserError

WIDTH: Final = 110
_TAKEN: Final = frozenset({*TRIAL_PLACEHOLDERS, *RESERVED_COLUMNS, *STYLES, "resume"})


@dataclass
class ImportedSweep:
    """A sweep, its name, and notes on what was not carried over or must be looked at."""

    name: str
    sweep: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self, source: Path) -> str:
        """The config as YAML, with the notes above it.

        Raises:
            UserError: it would not be valid.
        """
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.name).strip("-_")[:64] or "sweep"
        content = {"sweeps": {name: self.sweep}}
        try:
            config = check_config(content, source=f"the config of {source}")
        except ConfigError as error:
            raise UserError(
                f"{source} cannot be imported; this would be its config:\n{write_yaml(content)}{error}"
            ) from None
        for finding in check_script_source(CheckedStudy[Any]("", config.sweeps[name])):
            if finding.verdict != "ok":
                self.note(finding.text)
        lines = [f"Imported from {source}."]
        lines += ["What to look at, and what was not carried over:"] if self.notes else []
        for note in self.notes:
            lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
        return "".join(f"# {line}\n" for line in lines) + write_yaml(content)


def import_commands(path: Path) -> ImportedSweep:
    """The sweep of a file with a command in each line."""
    imported = ImportedSweep(path.stem, {"commands": str(path), "slots": {"gpus_per_node": 1}})
    imported.note("`slots`: how many commands run at once; `gpus_per_node: 4` runs four; without a GPU, `cpus: 4`")
    imported.note("`metrics`: nothing says what the programs report, so they are ranked by their seconds")
    return imported


def key_for(name: str) -> str:
    """A key of the config for a parameter: the same name, unless it has other characters or another meaning."""
    parts = [re.sub(r"^(?=\d)", "_", re.sub(r"\W", "_", part, flags=re.ASCII)) for part in name.split(".")]
    if parts[0] in _TAKEN:
        parts[0] += "_"
    return ".".join(parts)
