"""What is known of images before they are staged is what staging finds."""

from dataclasses import replace

import pytest
from trainyard.config.datasets import Digits, Python, Synthetic
from trainyard.data.known_images import KnownImages, known_images
from trainyard.data.staging import stage

SMALL = Synthetic(source="synthetic", images=20, val_images=5, height=4, width=6, channels=1, classes=3)


@pytest.mark.parametrize("dataset", [Digits(source="digits"), SMALL], ids=["digits", "synthetic"])
def test_the_config_tells_what_staging_finds(tmp_path, dataset):
    before = known_images(dataset, tmp_path)
    stage(dataset, tmp_path)
    assert known_images(dataset, tmp_path) == replace(before, is_staged=True)


def test_what_was_staged_for_another_section_tells_nothing(tmp_path):
    stage(SMALL, tmp_path)
    changed = SMALL.model_copy(update={"images": 40})
    assert known_images(changed, tmp_path).training_images == 40


def test_a_dataset_of_own_code_has_the_outputs_that_the_config_names(tmp_path):
    own = Python(source="python", factory="a:b", on_the_fly=True, targets=["x", "y"])
    assert known_images(own, tmp_path) == KnownImages(outputs=2, numeric=True)
