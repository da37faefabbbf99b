"""Starts the ranks of a training on one node, after all nodes have met.

`launchers` starts it on each node, as `python scripts/trainyard scaling.agent FOLDER NODES RANKS PROGRAM...`: the
private folder of the launch, the names of all nodes with commas, the ranks per node, and the program of a rank.
"""

import sys
from pathlib import Path

from trainyard.cluster.stop_request import block_stop_signals, forward_to_ranks
from trainyard.scaling.rendezvous import Rendezvous, RendezvousError, end_together, find_node_rank


def main() -> int:
    """Run the ranks; returns 1 if one failed, 128 + the number of a signal that ended them, otherwise 0."""
    folder = Path(sys.argv[1])
    nodes = sys.argv[2].split(",")
    ranks = int(sys.argv[3])
    node_rank = find_node_rank(nodes)
    try:
        endpoint, listener = Rendezvous(folder, nodes, rank=node_rank).meet()
    except RendezvousError:
        code = 1  # the launcher reports it
    else:
        block_stop_signals()
        from trainyard.scaling import torchrun  # imports torch, which takes seconds

        forward_to_ranks()
        code = torchrun.run_ranks(
            sys.argv[4:],
            node_rank=node_rank,
            nodes=len(nodes),
            ranks=ranks,
            endpoint=endpoint,
            listener=listener,
            folder=folder,
        )
    end_together(folder, task=node_rank, tasks=len(nodes), code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
