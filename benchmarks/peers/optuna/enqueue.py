# https://optuna.readthedocs.io/en/stable/tutorial/20_recipes/008_specify_params.html
import optuna
from worker import storage, trials

try:
    study = optuna.create_study(storage=storage, study_name="sweep")
    for index in trials:
        study.enqueue_trial({"index": index})
except optuna.exceptions.DuplicatedStudyError:  # it was killed: its running trials are lost
    study = optuna.load_study(storage=storage, study_name="sweep")
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study.enqueue_trial(trial.params)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
