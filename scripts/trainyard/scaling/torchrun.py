"""torchrun on one node of a training, with a rendezvous of its own, and a record of how its ranks failed.

torchrun's own rendezvous (c10d) unpickles what it finds in its store, to which everyone on the network can write.
Here, the nodes have met before: the first one serves the store at the endpoint, the ranks are numbered in the order of
the nodes, and the agents keep only text in the store.
"""

import argparse
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousInfo, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import get_args_parser, run

from trainyard.cluster import host, slurm_allocation, stop_request
from trainyard.cluster.node_folders import remove_copies_at_exit
from trainyard.config.load import read_config
from trainyard.scaling import rank_failures
from trainyard.scaling.launchers import SIGNALS_OF_TORCHRUN
from trainyard.scaling.rendezvous import Endpoint

BACKEND: Final = "trainyard"
STORE_SECONDS: Final = 600  # to import torch on all nodes
ABORTED: Final = (
    "NCCL aborts a rank when a collective operation fails, or takes longer than timeout_minutes of `ddp` because "
    "another rank hangs: the log has NCCL's error, flight-recorder-rank-* beside history.csv what each rank waited for"
)
# The option of train.py that is needed here.
_TRAINING: Final = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
_TRAINING.add_argument("--config", type=Path)


def run_ranks(
    command: Sequence[str],
    *,
    node_rank: int,
    nodes: int,
    ranks: int,
    endpoint: Endpoint,
    listener: socket.socket | None,
    folder: Path,
) -> int:
    """Run the ranks of this node; returns 1 if one failed, 128 + the number of a signal that ended them, otherwise 0.

    The first node has the `listener` at the endpoint. `folder` gets torchrun's logs and the records of failures.
    """
    rendezvous_handler_registry.register(BACKEND, lambda _: MetRendezvous(node_rank, nodes, endpoint, listener))
    job = slurm_allocation.job_id()
    where = f"{endpoint.address}:{endpoint.port}"  # torchrun warns without one
    options = ["--rdzv-backend", BACKEND, "--rdzv-id", job, "--rdzv-endpoint", where, "--nnodes", str(nodes)]
    options += ["--nproc-per-node", str(ranks), "--log-dir", str(folder)]
    options += ["--signals-to-handle", SIGNALS_OF_TORCHRUN]  # SIGHUP is a stop request
    node = host.node_name()
    training, _ = _TRAINING.parse_known_args(command)
    try:
        # The data of a trial were copied by its worker.
        with remove_copies_at_exit(read_config(training.config).data.local if training.config else "off"):
            run(get_args_parser().parse_args([*options, *command]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        terminated = (-signal.SIGTERM, stop_request.TERMINATED)  # by torchrun, because another rank had failed
        failures = error.failures.items()
        found = [rank_failure(rank, node, each) for rank, each in failures if each.exitcode not in terminated]
        rank_failures.write_failures(found, folder, node=node)
        return 1
    except SignalException as error:
        return 128 + error.sigval
    return 0


class MetRendezvous(StaticTCPRendezvous):
    """torchrun's static rendezvous for nodes that have met: the store is served at the socket that listens already."""

    def __init__(self, node_rank: int, nodes: int, endpoint: Endpoint, listener: socket.socket | None) -> None:
        super().__init__(
            endpoint.address, endpoint.port, node_rank, nodes, slurm_allocation.job_id(), timeout=STORE_SECONDS
        )
        self._listener = listener

    def next_rendezvous(self) -> RendezvousInfo:
        """The store, and the rank of this node. It is called once, as nothing restarts ranks."""
        self._store = TCPStore(
            self.master_addr,
            self.master_port,
            is_master=self._listener is not None,
            timeout=self.timeout,
            wait_for_workers=False,
            master_listen_fd=self._listener.detach() if self._listener else None,
        )
        return super().next_rendezvous()

    def get_backend(self) -> str:
        """The name of this rendezvous, as in `--rdzv-backend`."""
        return BACKEND


def rank_failure(rank: int, node: str, failure: ProcessFailure) -> rank_failures.RankFailure:
    """The failure of a rank as torchrun reports it."""
    raised_at = failure.error_file_data.get("timestamp")  # None: no exception was recorded
    message = (
        failure.message if raised_at or failure.exitcode < 0 else f"exit code {failure.exitcode}, no error message"
    )
    # NCCL's watchdog aborts the process: often after a failure of another rank, which is then the cause.
    aborted = failure.exitcode == -signal.SIGABRT
    return rank_failures.RankFailure(
        rank=rank,
        node=node,
        message=f"{message}; {ABORTED}" if aborted else message,
        time=raised_at or failure.timestamp,
        killed=failure.exitcode < 0 and not aborted,
    )
