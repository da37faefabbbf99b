"""The error of a failed program is the line of its output that a person would quote."""

import pytest
from trainyard.programs.output import OutputReader, find_error, find_hidden_error

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 9, in main', "    raise ValueError(3)"]
ERRORS = {
    "the last line": (["reading", "train.py: error: unrecognized arguments: --lr"],
                      "train.py: error: unrecognized arguments: --lr"),
    "none": ([], ""),
    "a hint": ([*TRACEBACK, "ValueError: 3", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack"],
               "ValueError: 3"),
    "a hint without a traceback": (["Key 'x' is not in struct", "Set the environment variable HYDRA_FULL_ERROR=1 for"],
                                   "Key 'x' is not in struct"),
    "advice after it": ([*TRACEBACK, "RuntimeError: CUDA error: out of range", "Compile with `TORCH_USE_CUDA_DSA`"],
                        "RuntimeError: CUDA error: out of range"),
    "a cause": ([*TRACEBACK, "KeyError: 'x'", "During handling of the above exception, ...", *TRACEBACK, "ValueError"],
                "ValueError"),
    "a message on the next line": ([*TRACEBACK, "RuntimeError: Error(s) in loading Net:", "\tsize mismatch for fc"],
                                   "RuntimeError: Error(s) in loading Net: size mismatch for fc"),
    "of a rank": ([f"[rank1]: {line}" for line in (*TRACEBACK, "ValueError: 3")] + ["[rank0]: waiting"],
                  "ValueError: 3"),
    "of a launcher": ([*TRACEBACK, "ValueError: 3", *TRACEBACK, "torch.errors.ChildFailedError:", "=====", "FAILED"],
                      "ValueError: 3"),
    "of a launcher alone": ([*TRACEBACK, "subprocess.CalledProcessError: x", "end"],
                            "subprocess.CalledProcessError: x"),
    "one that was handled": ([*TRACEBACK, "ValueError: 3", *map(str, range(30)), "no data"], "no data"),
    "out of memory, and much after it": ([*TRACEBACK, "torch.OutOfMemoryError: x", *map(str, range(60))],
                                         "torch.OutOfMemoryError: x"),
    "in a box of Rich": (["╭─── Traceback (most recent call last) ───╮", "│ train.py:9 in main │", "╰────╯",
                          "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00", "GiB"],
                         "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00"),
    "a torn one": (TRACEBACK, "raise ValueError(3)"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_the_error_is_found_as_a_person_would(case):
    lines, expected = ERRORS[case]
    assert find_error(lines, recent=30) == expected


HIDDEN = {
    "an exception that was caught": ([*TRACEBACK, "ValueError: 3", "training failed"], "ValueError: 3"),
    "of a child": (["Process Process-1:", *TRACEBACK, "ValueError: 3"], "ValueError: 3"),
    "a signal": (["epoch 1", 'run.sh: line 4: 21 Killed    python train.py "$@"', "done"],
                 'run.sh: line 4: 21 Killed    python train.py "$@"'),
    "one that was handled": ([*TRACEBACK, "ValueError: 3", *map(str, range(5))], ""),
    "at the end of Python": (["Exception ignored in: <function f at 0x7f>", *TRACEBACK, "TypeError: 3"], ""),
    "in a thread": (["Exception in thread Thread-1 (_pin_memory_loop):", *TRACEBACK, "EOFError"], ""),
    "none": (["epoch 1"], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", HIDDEN)
def test_an_error_behind_exit_code_0_is_found_at_the_end(case):
    lines, expected = HIDDEN[case]
    assert find_hidden_error(lines) == expected


def test_what_wandb_prints_after_an_exception_hides_no_error(tmp_path):
    reader = OutputReader(tmp_path / "output.log")
    reader.stop_reading()
    summary = [f"wandb: {number} of the run" for number in range(600)]
    reader.take("\n".join([*TRACEBACK, "ValueError: 3", *summary, ""]).encode())
    reader.take(b"")
    assert reader.error() == "ValueError: 3"
