#!/bin/bash
# A job script as users have them: it sets up what the training needs, and passes its options on.
set -euo pipefail
scratch=$(mktemp -d) # of the node
trap 'rm -rf "$scratch"' EXIT
echo "running on $(hostname) with $OMP_NUM_THREADS threads, scratch folder $scratch"
export TORCH_HOME=$scratch
python "$(dirname "$0")/train_argparse.py" "$@"
