# https://docs.ray.io/en/latest/tune/api/doc/ray.tune.Tuner.html
# https://docs.ray.io/en/latest/tune/tutorials/tune-fault-tolerance.html
from pathlib import Path

from ray import tune
from trial import wait


def train(config):
    wait(*config["trial"])
    return {"done": True}


trials = sorted((float(seconds), int(index)) for seconds, index in map(str.split, open("trials.txt")))
trainable = tune.with_resources(train, {"cpu": 1, "gpu": 1})
path = Path("ray_results/sweep").absolute()
if tune.Tuner.can_restore(path):
    tuner = tune.Tuner.restore(str(path), trainable=trainable, restart_errored=True)
else:
    tuner = tune.Tuner(
        trainable,
        param_space={"trial": tune.grid_search(trials[::-1])},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            name=path.name, storage_path=str(path.parent), failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
tuner.fit()
