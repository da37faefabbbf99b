"""The training of a trial on one of its GPUs, started by torchrun as the ranks of a scale of a study are.

The folder of the launch has the trial. Rank 0 writes each epoch there, and then how the training ended.
"""

import json
import logging
import sys
import traceback
from pathlib import Path

from trainyard.cluster.job_step import end_rank
from trainyard.config.scaling import TrainScaling
from trainyard.config.trial_status import TrialStatus
from trainyard.data.node_copy import local_copy
from trainyard.data.staged import Staged
from trainyard.kinds.train_on_gpus import END, EPOCHS, TRIAL
from trainyard.scaling.rank import create_trainer, join_ranks, train_epochs
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.trainer import Trainer, TrainingInterrupted
from trainyard.utils.errors import Diverged
from trainyard.utils.files import write_json


def train_trial(launch: Path) -> None:
    """Join the process group and train the trial in the folder of a launch.

    Raises:
        UserError: as `create_trainer` and `train_epochs` do.
    """
    trial = json.loads((launch / TRIAL).read_text())
    study = TrainScaling.model_validate(trial["study"])
    staged = Staged(Path(trial["dataset"]))
    with (
        join_ranks(study, study.scales[0], traces=launch.parent) as (group, stop_request),
        local_copy(staged, trial["local"]) as copy,
    ):
        store = CheckpointStore(Path(trial["checkpoints"]), {"trial": trial["trial"]})
        trainer = create_trainer(
            study,
            study.scales[0],
            copy.staged,
            group,
            store,
            folder=launch.parent,
            save_last=False,  # the journal has the results of a trial
            deadline=trial["deadline"],
            stop_request=stop_request,
            downloads=trial["downloads"],
        )
        earlier_seconds = trainer.seconds
        status = TrialStatus.FINISHED
        error = ""
        try:
            _report(trainer, launch, 0)
            for row in train_epochs(trainer, study, store):
                _report(trainer, launch, row.epoch - 1)
        except TrainingInterrupted as interruption:
            status = TrialStatus.INTERRUPTED
            error = str(interruption)
        except Diverged as divergence:
            status = TrialStatus.DIVERGED
            error = str(divergence)
        if group.is_main:
            end = {"status": status, "error": error, "precision": trainer.precision, "metrics": trainer.trial_metrics}
            write_json(launch / END, end | {"earlier_seconds": earlier_seconds})


def _report(trainer: Trainer, launch: Path, begin: int) -> None:
    """Append the epochs from `begin` on to the file of epochs."""
    if trainer.group.is_main:
        with open(launch / EPOCHS, "a") as file:
            file.writelines(f"{json.dumps(row.as_row())}\n" for row in trainer.history[begin:])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    code = 1
    try:
        train_trial(Path(sys.argv[1]))
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        end_rank(code)
