"""A first pattern for the metrics of a program, guessed from lines of its output."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainyard.config.metric_names import guess_mode, is_counter
from trainyard.config.user_programs import NUMBER, Metrics
from trainyard.programs.metrics import PatternParser, numeric_row

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
# A word, which is no part of a name such as `val_acc`, that says of which data metrics are; in the group, held out.
_DATA: Final = re.compile(
    r"\b(?:train|training|(val|valid|validation|test|eval|dev))(?![a-z]|[_/.-][a-z])", re.IGNORECASE
)
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
    return any(each[1] for each in _DATA.finditer(re.sub(r"[\W_]", " ", name)))


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
    if not pairs:
        return None
    data = list(_DATA.finditer(line, 0, pairs[-1][0].start("value")))
    if not any(each[1] for each in data):
        data = []
    names = [_name_with_data(pair, name, data) for pair, name in pairs]
    measures = [name for name in names if name != "epoch"]
    if not measures or len(set(measures)) < len(measures):
        return None
    end, pattern = min(each.start() for each in (pairs[0][0], *data[:1])), ""
    for (pair, _), name in zip(pairs, names, strict=True):
        gap, label = line[end : pair.start("name")], line[pair.start("name") : pair.start("value")]
        first = _escape(gap.split()[0]) if gap and not pattern else ""  # a word of `data`
        gap = _escape(gap) if _PLAIN.fullmatch(gap) else f"{first}.*?"
        pattern += gap + _escape(label) + f"(?P<{name}>{{number}})"
        end = pair.end("value")
    metric = max(measures, key=_merit)
    guess = GuessedMetrics(pattern, line, metric)
    return guess if _finds_numbers(guess) else None


def _name_with_data(pair: re.Match[str], name: str, data: Sequence[re.Match[str]]) -> str:
    """The name of a metric with the word that says of which data it is, the last one before it in the line.

    As in `Test set: loss 0.1`, and in `train: loss 0.2 acc 0.9 | val: loss 0.3 acc 0.8`.
    """
    before = [each[0].lower() for each in data if each.start() < pair.start("value")]
    has_own = name == "epoch" or _DATA.search(name.replace("_", " "))
    return name if has_own or not before else f"{before[-1]}_{name}"


def _metric_name(words: str) -> str:
    """The name of a metric, as in `val_acc`, or "epoch"; "" for what is neither."""
    parts = [part for part in re.split(r"[^A-Za-z0-9@]+", words.lower()) if part]
    if parts[-1:] in (["epoch"], ["ep"]):
        return "epoch"
    name = re.sub(r"\W+", "_", "_".join(parts))
    is_score = not _SCORES.isdisjoint(parts)
    is_loss = guess_mode(name) == "min" and _NO_MEASURE.isdisjoint(parts) and not is_counter(name)
    return name if is_score or is_loss else ""


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
