"""torchrun on one node of a training, which records how its ranks failed.

It has the options of torchrun. `launchers.launch` starts it as `python scripts/trainyard scaling.agent`.
"""

import argparse
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import get_args_parser, run

from trainyard.cluster import host
from trainyard.cluster.held_folders import remove_copies_at_exit
from trainyard.config.load import read_config
from trainyard.scaling.notices import TERMINATED, forwarding_to_ranks
from trainyard.training import rank_failures


def main() -> int:
    """Run torchrun; returns 1 if a rank failed, 128 + the number of a signal that ended it, otherwise 0."""
    parser = get_args_parser()
    parser.description = __doc__
    arguments = parser.parse_args()
    node = host.node_name()
    training, _ = _TRAINING.parse_known_args(arguments.training_script_args)
    try:
        with forwarding_to_ranks(), remove_copies_at_exit(read_config(training.config).data.local):
            run(arguments)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        found = [_failure(rank, node, each) for rank, each in error.failures.items() if not _was_terminated(each)]
        rank_failures.write_failures(found, Path(arguments.log_dir), node=node)
        return 1
    except SignalException as error:
        return 128 + error.sigval
    return 0


_TRAINING = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # the option of train.py that is needed here
_TRAINING.add_argument("--config", type=Path)


def _was_terminated(failure: ProcessFailure) -> bool:
    """Whether torchrun terminated the rank, because another one had failed."""
    return failure.exitcode in (-signal.SIGTERM, TERMINATED)


def _failure(rank: int, node: str, failure: ProcessFailure) -> rank_failures.RankFailure:
    raised_at = failure.error_file_data.get("timestamp")  # None: no exception was recorded
    return rank_failures.RankFailure(
        rank=rank,
        node=node,
        message=failure.message
        if raised_at or failure.exitcode < 0
        else f"exit code {failure.exitcode}, no error message",
        time=raised_at or failure.timestamp,
        killed=failure.exitcode < 0,
    )


if __name__ == "__main__":
    sys.exit(main())
