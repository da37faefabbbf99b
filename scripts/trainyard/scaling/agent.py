"""Starts the ranks of a training on one node, after all nodes have met.

`launchers.launch` starts it on each node, as `python scripts/trainyard scaling.agent`.
"""

import argparse
import sys
from pathlib import Path

from trainyard.cluster.stop_request import block_stop_signals, forward_to_ranks
from trainyard.scaling.rendezvous import Rendezvous, RendezvousError, end_together, find_node_rank


def main() -> int:
    """Run the ranks; returns 1 if one failed, 128 + the number of a signal that ended them, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="private folder of this launch")
    parser.add_argument("--nodes", required=True, metavar="NAMES", help="the nodes of the training, with commas")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks per node")
    parser.add_argument("command", nargs="+", help="program of a rank and its options, after --")
    arguments = parser.parse_args()
    nodes = arguments.nodes.split(",")
    node_rank = find_node_rank(nodes)
    try:
        endpoint, listener = Rendezvous(arguments.folder, nodes, rank=node_rank).meet()
    except RendezvousError:
        code = 1  # the launcher reports it
    else:
        block_stop_signals()
        from trainyard.scaling import torchrun  # imports torch, which takes seconds

        forward_to_ranks()
        code = torchrun.run_ranks(
            arguments.command,
            node_rank=node_rank,
            nodes=len(nodes),
            ranks=arguments.ranks,
            endpoint=endpoint,
            listener=listener,
            folder=arguments.folder,
        )
    end_together(arguments.folder, task=node_rank, tasks=len(nodes), code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
