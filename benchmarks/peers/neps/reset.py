# https://automl.github.io/neps/latest/reference/clean
from pathlib import Path

from neps.clean import clean_trials_by_state
from neps.state.trial import Trial

clean_trials_by_state(Path("neps_results"), desired_states=[Trial.State.CRASHED, Trial.State.EVALUATING])
