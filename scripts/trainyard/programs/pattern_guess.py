"""A first pattern for the metrics of a program, guessed from lines of its output."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.config.metric_names import guess_mode, is_counter
from trainyard.config.user_programs import NUMBER, Metrics
from trainyard.programs.metric_patterns import PatternParser
from trainyard.programs.metric_rows import numeric_row

# A name of at most three words, what separates it from a number, and the number; of `9822/10000 (98%)`, the percent.
_PAIR: Final = re.compile(
    r"(?P<name>[A-Za-z][\w@./-]*(?: [A-Za-z][\w@./-]*){0,2})"
    r"(?:[\"']?(?:\s*[=:\[(|]){1,2}\s*|\s+)(?:\d+/\d+ \((?=\d+\.?\d*%))?"
    rf"(?P<value>{NUMBER})"
)
_SENTENCE: Final = re.compile(rf"(?P<name>accuracy|loss)\b[^:=]*[:=] *(?P<value>{NUMBER})$", re.IGNORECASE)
_SCORES: Final = frozenset((
    "acc", "accuracy", "top1", "acc1", "acc@1", "f1", "auc", "auroc", "iou", "miou", "map", "dice", "psnr", "ssim",
    "bleu", "rouge", "precision", "recall", "score", "reward", "return", "r2", "correlation",
))  # fmt: skip
_HELD_OUT: Final = re.compile(r"\b(?:val|valid|validation|test|eval|dev)(?![a-z])", re.IGNORECASE)
_DATA: Final = re.compile(rf"{_HELD_OUT.pattern}|\b(?:train|training)(?![a-z])", re.IGNORECASE)
_NO_MEASURE: Final = frozenset(("time", "ms", "s", "seconds", "duration", "latency", "cost", "per", "eta", "bits"))
_PLAIN: Final = re.compile(r"[\s\w,;:|/()\[\]{}=\"'%.<>-]{0,24}")  # what may stand between two metrics as it is


@dataclass(frozen=True)
class GuessedMetrics:
    """A pattern that finds metrics, the line that shows it, and the metric that tells how good a trial is."""

    pattern: str
    sample: str
    metric: str


def guess_pattern(lines: Sequence[str]) -> GuessedMetrics | None:
    """The pattern for the line that tells most; None if no line has a loss or a score."""
    found = [guess for line in dict.fromkeys(map(str.strip, lines)) if (guess := _guess(line))]
    return max(found, key=_value, default=None)


def best_metric(names: Iterable[str]) -> str:
    """Of the names of some metrics, the one that tells how good a trial is; "" if none is a loss or a score."""
    return max((name for name in names if _metric_name(name) not in ("", "epoch")), key=_merit, default="")


def is_held_out(name: str) -> bool:
    """Whether a metric is of validation or test data, by its name."""
    return _HELD_OUT.search(name.replace("_", " ")) is not None


def _value(guess: GuessedMetrics) -> tuple[int, int, int]:
    """How good a guess is: by what its metric measures, whether it names the epoch, and how many metrics it finds."""
    names = re.findall(r"\(\?P<(\w+)>", guess.pattern)
    return _merit(guess.metric), int("epoch" in names), len(names)


def _merit(name: str) -> int:
    """Of held-out data before training data, and a score before a loss."""
    return 2 * is_held_out(name) + (guess_mode(name) == "max")


def _guess(line: str) -> GuessedMetrics | None:
    """The pattern for a line, if it has a metric. Numbers that are none of them may be any number."""
    pairs = [(pair, name) for pair in _PAIR.finditer(line) if (name := _metric_name(pair["name"]))]
    if all(name == "epoch" for _, name in pairs) and (sentence := _SENTENCE.search(line)):
        pairs = [(sentence, sentence["name"].lower())]
    epochs = [pair for pair, name in pairs if name == "epoch"]
    pairs = [(pair, name) for pair, name in pairs if pair not in epochs[1:]]
    words = _find_data(line, pairs)
    names = [f"{word[0].lower()}_{name}" if word else name for (_, name), word in zip(pairs, words, strict=True)]
    if set(names) <= {"epoch"} or len(set(names)) < len(names):
        return None
    end, pattern = min(each.start() for each in (pairs[0][0], *words) if each), ""
    for (pair, _), name in zip(pairs, names, strict=True):
        gap, label = line[end : pair.start("name")], line[pair.start("name") : pair.start("value")]
        word = "" if pattern else "".join(gap.split()[:1])  # that tells the data: the first gap begins with it
        gap = _escape(gap) if _PLAIN.fullmatch(gap) else f"{_escape(word)}.*?"
        pattern += gap + _escape(label) + f"(?P<{name}>{{number}})"
        end = pair.end("value")
    metric = max((name for name in names if name != "epoch"), key=_merit)
    guess = GuessedMetrics(pattern, line, metric)
    return guess if _finds_numbers(guess) else None


def _find_data(line: str, pairs: Sequence[tuple[re.Match[str], str]]) -> list[re.Match[str] | None]:
    """For each metric, the word that tells on which data it was measured, such as `val`; None if its name needs none.

    All metrics of a line such as `Test set: loss 0.1 acc 0.9` share one word. If names occur twice, as in
    `train: loss 0.2 | val: loss 0.3`, each metric has the last such word before it, provided that all have one.
    """
    measures = [name for _, name in pairs if name != "epoch"]
    if len(set(measures)) == len(measures):
        word = _HELD_OUT.search(line, 0, pairs[-1][0].start("value")) if measures else None
        has_own = any(map(is_held_out, measures))
        return [None if name == "epoch" or has_own else word for _, name in pairs]
    found = list[re.Match[str] | None]()
    for pair, name in pairs:
        before = list(_DATA.finditer(line, 0, pair.start("value")))
        if name != "epoch" and not before:
            return [None] * len(pairs)
        has_own = name == "epoch" or _DATA.search(name.replace("_", " ")) is not None
        found.append(None if has_own else before[-1])
    return found


def _metric_name(words: str) -> str:
    """The name of a metric, as in `val_acc`, or "epoch"; "" for what is neither."""
    parts = [part for part in re.split(r"[^A-Za-z0-9@]+", words.lower()) if part]
    name = re.sub(r"\W+", "_", "_".join(parts))
    is_score = not _SCORES.isdisjoint(parts)
    is_loss = guess_mode(name) == "min" and _NO_MEASURE.isdisjoint(parts) and not is_counter(name)
    if is_score or is_loss:
        return name
    return "epoch" if parts[-1:] == ["epoch"] or parts == ["ep"] else ""


def _escape(text: str) -> str:
    """The text in a pattern, with any number in place of a number, and any space in place of several."""
    parts = re.split(rf"(?<![\w.@]){NUMBER}", text)
    escaped = (re.sub(r"\s{2,}|\t", r"\\s+", re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", part)) for part in parts)
    return re.sub(r"([(\[]) \{number", r"\1 *{number", "{number}".join(escaped))


def _finds_numbers(guess: GuessedMetrics) -> bool:
    """Whether the pattern is valid and finds whole numbers in its own line."""
    try:
        metrics = Metrics(pattern=guess.pattern, sample=guess.sample)
    except ValueError:
        return False
    parser = PatternParser(metrics.compiled)
    parser.add_line(guess.sample)
    rows = parser.take_rows(final=True)
    return not parser.warning and len(rows) == 1 and numeric_row(rows[0]).keys() == rows[0].keys()
