# https://automl.github.io/neps/latest/reference/neps_run
import neps
from trial import wait

trials = sorted(((float(seconds), int(index)) for seconds, index in map(str.split, open("trials.txt"))), reverse=True)


def evaluate(trial):
    wait(*trials[trial])
    return 0.0


class Space(neps.PipelineSpace):
    # As numbers: the grid keeps no order of other choices, and each worker would have another one.
    trial = neps.Categorical(tuple(range(len(trials))))


neps.run(
    evaluate,
    Space(),
    root_directory="neps_results",
    optimizer="grid_search",
    total_evaluations_to_spend=len(trials),
    ignore_errors=True,
)
