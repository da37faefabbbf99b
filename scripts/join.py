"""Be one more node of a sweep's Ray. srun starts this on the nodes of a sweep's job; there is no use for it by hand."""

import argparse
import sys

from trainyard.cluster.ray_node import join

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(join())
