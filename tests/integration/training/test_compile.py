"""Training with `compile: true`, which takes the compiler half a minute."""

from loops import LEARNER, assert_close, changed, numbers, start, train
from trainyard.training import models
from trainyard.training.untimed_steps import warm_up


def test_a_compiled_model_trains_to_the_same_metrics(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    spec = changed(LEARNER, epochs=1)
    compiled = start(changed(spec, compile=True), data)
    assert warm_up(compiled).seconds > 0
    assert compiled.module is not compiled.model
    assert models.is_known(spec.model)
    assert_close([numbers(row) for row in compiled.epochs()], train(spec, data)[0])
