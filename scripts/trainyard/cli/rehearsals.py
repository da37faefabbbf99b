"""The trainings of a config, tried before anything is submitted as far as the config decides whether they work."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Config
from trainyard.config.train import Train
from trainyard.config.trials import trainings
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import helper_command

_TRIED: Final = ("pretrained", "freeze", "lr_scale", "metrics")  # and own losses
_TOGETHER_WITH: Final = ("model", "model_args", "small_images", "loss", "loss_args", "monitor")
MOST: Final = 50  # per sweep; a model takes up to a second


def check_trainings(config: Config, results: Path) -> None:
    """Try the weights, patterns, losses and metrics of all trainings that have any, in another process.

    Raises:
        UserError: some trainings would fail; the message lists all of them.
    """
    tried = list(_rehearsals(config, results))
    if not tried:
        return
    command = helper_command("training.rehearsal")
    done = subprocess.run(command, input=json.dumps(tried), text=True, capture_output=True, check=False)
    if done.returncode:  # the process itself ended, as by sys.exit() in a user's code
        raise UserError(f"the trainings cannot be tried:\n{done.stderr.strip()}")
    if errors := json.loads(done.stdout.splitlines()[-1]):
        lines = "\n".join(f"  {place}: {error}" for place, error in errors.items())
        raise UserError(f"some trainings would fail:\n{lines}")


def _rehearsals(config: Config, results: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Place in the config, tried settings, and the folder of the dataset of each training that is tried."""
    for kind in ("sweeps", "scaling"):
        for name, study in getattr(config, kind).items():
            found = {json.dumps(each): each for each in map(_tried, trainings(study)) if each}
            for number, tried in enumerate(list(found.values())[:MOST], start=1):
                which = f" ({number} of {len(found)})" if len(found) > 1 else ""
                yield f"{kind}.{name}.train{which}", tried, str(results / "data" / study.dataset)


def _tried(spec: Train) -> dict[str, Any]:
    """The settings of a training that are tried; empty if there is nothing to try."""
    if not (spec.has_own_loss or any(getattr(spec, key) for key in _TRIED)):
        return {}
    settings = spec.model_dump(mode="json", exclude_defaults=True, include={*_TRIED, *_TOGETHER_WITH})
    mixing = {key: 1.0 for key in ("mixup", "cutmix") if getattr(spec.augment, key)}  # other labels for the loss
    return settings | ({"augment": mixing} if mixing else {})
