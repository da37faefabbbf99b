"""The scaling table: its columns against numbers computed by hand and published ones."""

import json

import pytest
from trainyard.scaling.speedups import as_markdown, recommendation, scaling_table, tables_to_paste


def summaries(folder, rows):
    """A folder with a summary per row: (run, GPUs, seconds, images per second, further fields)."""
    folders = {}
    for run, gpus, seconds, images, *more in rows:
        made = {"scale": run.partition("/")[0], "nodes": 1, "gpus": gpus, "global_batch": 8, "train_seconds": seconds,
                "images_per_second": images, "startup_seconds": 2.0, "device": "A100"}  # fmt: skip
        half = dict.fromkeys(("train_loss", "train_accuracy", "val_loss", "val_accuracy", "step_ms_p50"), 0.5)
        (folder / run).mkdir(parents=True)
        (folder / run / "summary.json").write_text(json.dumps(made | half | (more[0] if more else {})))
        folders.setdefault(made["scale"], []).append(folder / run)
    return folders


# A published example: 12, 6.5, 3.5 and 2 hours on 1, 2, 4 and 8 GPUs.
PUBLISHED = [("1x1", 1, 43200, 40), ("1x2", 2, 23400, 80), ("1x4", 4, 12600, 160), ("1x8", 8, 7200, 240)]


def test_the_published_speedups_and_costs_are_reproduced(tmp_path):
    table = scaling_table(summaries(tmp_path, PUBLISHED), mode="strong", gpu_hour=2.5)
    assert table["speedup"].tolist() == pytest.approx([1, 1.85, 3.43, 6.0], abs=0.005)
    assert table["efficiency"].tolist() == pytest.approx([1, 0.92, 0.86, 0.75], abs=0.005)
    assert table["gpu_hours"].tolist() == pytest.approx([12, 13, 14, 16])
    assert table["gpu_hours_increase"].tolist() == pytest.approx([0, 0.08, 0.17, 0.33], abs=0.005)
    assert table["cost"].tolist() == pytest.approx([30, 32.5, 35, 40])
    assert table["throughput_scaling"].tolist() == [1, 2, 4, 6]
    assert table["cost_per_million_images"].tolist() == pytest.approx([17.361, 17.361, 17.361, 23.148], abs=0.001)
    best = "recommended: best time for at most 20% more GPU-hours"
    assert table["verdict"].tolist() == ["baseline", "good value", best, "diminishing returns"]
    assert table["recommended"].tolist() == [False, False, True, False]
    assert recommendation(table) == (
        "Use 1x4: the best time (3 h 30 min) for at most 20% more GPU-hours than 1x1 (+17%). The largest scale with an "
        "efficiency of at least 70% is 1x8 (75%, +33% GPU-hours). More than 20% more GPU-hours at 1x8: diminishing "
        "returns."
    )
    assert recommendation(table[:3]).endswith("All scales of this study pay off.")


def test_two_tables_are_ready_to_paste(tmp_path):
    """Nine columns, for GPUs and for nodes, each with the baseline first; what is unknown is a dash."""
    rows = [("1x1", 1, 100, 704.9, {"gpu0_peak_mib": 9042.0, "gpu0_avg_mib": 8000.5, "gpu0_mode_mib": 8990.0}),
            ("1x2", 2, 60, 1300.0, {"gpu0_peak_mib": 9100.0, "gpu0_avg_mib": 8800.55, "train_accuracy": None}),
            ("2x2", 4, 40, 2500.0, {"nodes": 2})]  # fmt: skip
    table = scaling_table(summaries(tmp_path, rows), mode="weak", gpu_hour=None)
    tables = {name: as_markdown(each) for name, each in tables_to_paste(table).items()}
    head = (
        "| Experiment | Train loss | Train accuracy | Throughput (img/s) | GPU 0 peak (MiB) | GPU 0 avg (MiB) | "
        "GPU 0 mode (MiB) | Throughput scaling | Memory avg scaling |\n" + "| --- " * 9 + "|\n"
    )
    baseline = "| Baseline (1 GPU) | 0.500 | 50.00% | 704.9 | 9042 | 8000.50 | 8990 | 1.00x | 1.00x |\n"
    assert tables == {
        "gpus": head + baseline + "| 2 GPUs | 0.500 | - | 1300.0 | 9100 | 8800.55 | - | 1.84x | 1.10x |\n",
        "nodes": head + baseline + "| 2 nodes, 4 GPUs | 0.500 | 50.00% | 2500.0 | - | - | - | 3.55x | - |\n",
    }
    assert list(tables_to_paste(table[:2])) == ["gpus"]


def test_strong_scaling_after_patience_compares_epochs(tmp_path):
    """Twice as fast an epoch, but twice as many of them before the training stopped to improve."""
    rows = [("1x1", 1, 100, 40, {"epochs": 4, "lr": 0.1}), ("1x2", 2, 100, 80, {"epochs": 8, "val_f1": 0.5})]
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert table["speedup"].tolist() == [1, 2]
    assert table["epochs"].tolist() == [4, 8]
    assert table["val_f1"].tolist()[1] == 0.5, "own metrics are columns"


def test_strong_scaling_of_a_script_compares_times_whatever_it_reports(tmp_path):
    """Rows of steps are kept at a limited rate, so a faster run has fewer of them; in a minute without any, none."""
    rows = [("1x1", 1, 4000, None, {"launcher": "torchrun", "epochs": 4300}),
            ("1x4", 4, 1000, None, {"launcher": "torchrun", "epochs": 1300}),
            ("1x8", 8, 600, None, {"launcher": "torchrun", "epochs": 0})]  # fmt: skip
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert table["speedup"].tolist() == pytest.approx([1, 4, 4000 / 600])
    assert table["speedup_low"].tolist() == table["speedup"].tolist()
    assert table["recommended"].tolist() == [False, False, True]


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_a_scale_that_trained_other_epochs_is_not_compared(tmp_path, mode):
    """The script at 1x1 has resumed from the file that the one at 1x2 had saved in a folder that they share."""
    script = {"launcher": "torchrun"}
    rows = [("1x1", 1, 30, 40, script | {"trained_epochs": 1}), ("1x2", 2, 50, 80, script | {"trained_epochs": 4}),
            ("1x4", 4, 9, 150, script | {"trained_epochs": 1})]  # fmt: skip
    table = scaling_table(summaries(tmp_path, rows), mode=mode, gpu_hour=2.5)
    compared = ["speedup", "speedup_low", "speedup_high", "efficiency", "gpu_hours_increase"]
    assert table.loc[1, compared].isna().all()
    assert table.loc[[0, 2], compared].notna().all(axis=None)
    assert table["verdict"].tolist()[1] == "not compared: 4 epochs instead of 1"
    assert table["recommended"].tolist() == [False, False, True]
    words = recommendation(table)
    assert words.startswith(
        "These scales did other work than 1x1 and are not compared: 1x2 (4 epochs instead of 1). Let each"
    )
    assert "{out_dir}" in words
    assert "Use 1x4" in words


def test_without_another_scale_of_the_same_work_there_is_no_recommendation(tmp_path):
    cpu = {"device": "cpu", "launcher": "torchrun"}
    rows = [("1x1", 1, 30, 40, cpu | {"trained_epochs": 1}), ("1x2", 2, 50, 80, cpu | {"trained_epochs": 4})]
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert table["verdict"].tolist() == ["on CPUs: says nothing of GPUs", "not compared: 4 epochs instead of 1"]
    assert "pay off" not in recommendation(table)


def test_repeats_that_continue_each_other_are_not_compared(tmp_path):
    rows = [("1x1", 1, 100, 40, {"trained_epochs": 4}), ("1x1/repeat-2", 1, 30, 40, {"trained_epochs": 1}),
            ("1x2", 2, 50, 80, {"trained_epochs": 4}), ("1x2/repeat-2", 2, 50, 80, {"trained_epochs": 4})]  # fmt: skip
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    expected = ["not compared: 1 to 4 epochs in its repeats", "not compared: 4 epochs instead of 1 to 4"]
    assert table["verdict"].tolist() == expected
    assert table["efficiency"].isna().all()
    assert "Use" not in recommendation(table)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"trained_steps": 3900}, {"trained_steps": 3990}, "good value"),
        ({"trained_steps": 4000}, {"trained_steps": 2000}, "good value"),  # of a batch size per GPU
        ({"trained_steps": 4000}, {"trained_steps": 1000}, "not compared: 1,000 steps instead of 4,000"),
        ({"trained_images": 50_000}, {"trained_images": 10_000}, "not compared: 10,000 images instead of 50,000"),
        ({"trained_epochs": 2, "trained_steps": 9}, {"trained_epochs": 2, "trained_steps": 1}, "good value"),
        ({"trained_epochs": 2}, {"trained_steps": 1}, "good value"),
    ],
)
def test_what_a_script_has_counted_is_the_work_of_its_scales(tmp_path, first, second, verdict):
    rows = [("1x1", 1, 100, 40, first), ("1x2", 2, 50, 80, second), ("1x3", 3, 30, 120, first)]
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert table["verdict"].tolist()[1] == verdict


def test_scales_that_do_not_pay_off_are_named(tmp_path):
    rows = [*PUBLISHED, ("2x8", 16, 6000, 280)]
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert table["verdict"].tolist()[-1] == "does not pay"
    assert "Scales from 2x8 on do not pay off." in recommendation(table)
    assert table["cost"].isna().all()


def test_a_scale_that_pays_off_is_not_said_to_be_beyond_those_that_do_not(tmp_path):
    rows = [("1x1", 1, 100, 40), ("2x1", 2, 90, 45), ("1x4", 4, 27, 150), ("4x2", 8, 20, 200)]
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert recommendation(table).endswith("These scales do not pay off: 2x1, 4x2.")


@pytest.mark.parametrize(
    ("images", "others"), [(75, "."), (20, ". Scales from 1x2 on do not pay off.")], ids=["pays", "does not pay"]
)
def test_a_scale_of_which_the_throughput_is_unknown_is_not_said_to_pay_off(tmp_path, images, others):
    script = {"launcher": "torchrun"}
    rows = [("1x1", 1, 100, 40, script), ("1x2", 2, 100, images, script), ("1x4", 4, 100, 0, script)]
    table = scaling_table(summaries(tmp_path, rows), mode="weak", gpu_hour=None)
    assert recommendation(table).endswith(f" GPU-hours){others} The throughput of these scales is unknown: 1x4.")


def test_weak_scaling_compares_images_per_second(tmp_path):
    """Four times the work in 110 s instead of 100 s: the efficiency is 100 / 110."""
    rows = [("1x1", 1, 100, 40), ("1x4", 4, 110, 4 * 40 * 100 / 110)]
    table = scaling_table(summaries(tmp_path, rows), mode="weak", gpu_hour=None)
    assert table["speedup"].tolist() == pytest.approx([1, 400 / 110])
    assert table["efficiency"].tolist() == pytest.approx([1, 100 / 110])
    assert table["gpu_hours_increase"].tolist() == pytest.approx([0, 0.1]), "for the same images"


def test_a_script_that_reports_no_images_per_second_at_first_has_no_infinite_speedup(tmp_path):
    rows = [("1x1", 1, 100, 0, {"launcher": "torchrun"}), ("1x2", 2, 100, 80, {"launcher": "torchrun"})]
    table = scaling_table(summaries(tmp_path, rows), mode="weak", gpu_hour=2.5)
    assert table["images_per_second"].isna().tolist() == [True, False]
    assert table["speedup"].isna().all()
    assert table["throughput_scaling"].isna().all()


def test_memory_scaling_is_that_of_the_first_gpus_average(tmp_path):
    """The mean memory of GPU 0, relative to that of the baseline."""
    rows = [("1x1", 1, 100, 40, {"gpu0_avg_mib": 8000}), ("1x2", 2, 100, 76, {"gpu0_avg_mib": 8400})]
    table = scaling_table(summaries(tmp_path, rows), mode="weak", gpu_hour=None)
    assert table["memory_avg_scaling"].tolist() == pytest.approx([1, 1.05])


def test_the_energy_of_a_scale_is_in_the_table(tmp_path):
    rows = [("1x1", 1, 100, 40, {"energy_kwh": 0.5}), ("1x2", 2, 100, 76, {"energy_kwh": None})]
    runs = summaries(tmp_path, rows)
    table = scaling_table(runs, mode="weak", gpu_hour=2.0)
    assert table["energy_kwh"].tolist() == pytest.approx([0.5, float("nan")], nan_ok=True)


def test_repeats_give_medians_and_their_spread(tmp_path):
    rows = [("1x1", 1, 100, 40), ("1x1/repeat-2", 1, 110, 36), ("1x1/repeat-3", 1, 98, 41),
            ("1x2", 2, 50, 78), ("1x2/repeat-2", 2, 60, 70), ("1x2/repeat-3", 2, 55, 75)]  # fmt: skip
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=None)
    assert table["repeats"].tolist() == [3, 3]
    assert table["train_seconds"].tolist() == [100, 55]
    assert table["images_per_second"].tolist() == [40, 75]
    assert table["train_seconds_spread"].tolist() == pytest.approx([12 / 100, 10 / 55])
    assert table["speedup"].tolist() == pytest.approx([1, 100 / 55])
    assert table["speedup_low"].tolist() == pytest.approx([100 / 110, 100 / 60])
    assert table["speedup_high"].tolist() == pytest.approx([100 / 98, 100 / 50])
    assert table["gpus"].tolist() == [1, 2], "whole numbers stay whole"


def test_the_speedup_of_the_baseline_is_one_with_two_repeats(tmp_path):
    rows = [("1x1", 1, 100, 40), ("1x1/repeat-2", 1, 140, 30), ("1x2", 2, 60, 78)]
    for mode in ("weak", "strong"):
        table = scaling_table(summaries(tmp_path / mode, rows), mode=mode, gpu_hour=None)
        assert table["speedup"][0] == table["efficiency"][0] == 1
        assert table["speedup_low"][0] < 1 < table["speedup_high"][0]


def test_a_run_on_cpus_costs_no_gpu_hours_and_gets_no_verdict(tmp_path):
    rows = [("1x1", 1, 100, 40, {"device": "cpu"}), ("1x2", 2, 60, 70, {"device": "cpu"})]
    table = scaling_table(summaries(tmp_path, rows), mode="strong", gpu_hour=2.5)
    empty = ["gpu_hours", "cost", "gpu_hours_increase", "cost_per_million_images"]
    assert table[empty].isna().all(axis=None)
    assert set(table["verdict"]) == {"on CPUs: says nothing of GPUs"}
    assert not table["recommended"].any()
    assert "no recommendation" in recommendation(table)
