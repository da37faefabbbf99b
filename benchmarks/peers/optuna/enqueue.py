# https://optuna.readthedocs.io/en/stable/tutorial/20_recipes/008_specify_params.html
import optuna
from optuna.trial import TrialState
from worker import storage, trials

try:
    study = optuna.create_study(storage=storage, study_name="sweep")
    for index in trials:
        study.enqueue_trial({"index": index})
except optuna.exceptions.DuplicatedStudyError:  # it was killed: its running trials are lost
    study = optuna.load_study(storage=storage, study_name="sweep")
    kept = set()
    for trial in study.get_trials():
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)
        elif trial.state == TrialState.COMPLETE:
            kept.add(trial.params["index"])
        elif trial.state == TrialState.WAITING:
            kept.add(trial.system_attrs["fixed_params"]["index"])
    for index in trials:
        if index not in kept:  # it may have been killed before it had parameters, or before it was retried
            study.enqueue_trial({"index": index})
