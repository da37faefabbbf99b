# https://optuna.readthedocs.io/en/stable/tutorial/20_recipes/011_journal_storage.html
import optuna
from optuna.trial import TrialState
from trial import wait

storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("journal.log"))
trials = {int(index): float(seconds) for seconds, index in map(str.split, open("trials.txt"))}
trials = dict(sorted(trials.items(), key=lambda trial: -trial[1]))


def objective(trial):
    index = trial.suggest_int("index", 1, len(trials))
    wait(trials[index], index)
    return 0.0


def retry(study, trial):
    if trial.state == TrialState.FAIL:
        study.enqueue_trial(trial.params)


if __name__ == "__main__":
    study = optuna.load_study(storage=storage, study_name="sweep")
    stop = optuna.study.MaxTrialsCallback(len(trials), states=(TrialState.COMPLETE, TrialState.RUNNING))
    study.optimize(objective, callbacks=[retry, stop], catch=Exception)
