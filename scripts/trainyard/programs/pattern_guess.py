"""A first pattern for the metrics of a program, guessed from the output of a short run.

A guess may be a decoy, and is said to be a guess. A guessed metric varies while the program runs, is reported until its
end, and rather tells of held-out data, or is a score, than of training.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from trainyard.config.metric_names import guess_mode, is_counter
from trainyard.config.user_programs import NUMBER, Metrics
from trainyard.programs.metric_patterns import parse_lines
from trainyard.programs.metric_rows import HELD_OUT, find_subject, has_decimal_comma, numeric_row

# A name of at most three words, what separates it from a number, and the number; of `9822/10000 (98%)`, the percent.
# A threshold belongs to the name, as in `mAP@0.5:0.95: 0.41`. The number may be in quotes.
_NAMED: Final = (
    r"(?<![A-Za-z])(?P<name>(?:[A-Za-z][\w./-]{0,50}@[\d.]+(?::[\d.]+)+(?=\s*[=:])|[A-Za-z][\w@./-]{0,50})"
    r"(?: (?!nan |inf )[A-Za-z][\w@./-]{0,50}){0,2})"
    r"(?:[\"']?(?:\s*[=:\[(|]){1,2}\s*[\"']?|\s+-\s+|\s+)"
)
_PAIR: Final = re.compile(rf"{_NAMED}(?:\d+/\d+ \((?=\d+\.?\d*%))?(?P<value>{NUMBER})")
# Of a meter of batches, such as `[10/50] Loss 6.9 (6.8)`, the average: in their last line, it is of all of them.
_AVERAGE: Final = re.compile(rf"{_NAMED}(?:{NUMBER} \(\s*(?={NUMBER}\)))?(?P<value>{NUMBER})")
_AVERAGED: Final = re.compile(rf"{NUMBER} \(\s*{NUMBER}\)")
_BATCH: Final = re.compile(r"(?<!epoch)(?<!epoch[ :])(?<!epoch: )\[\s*\d+/\d+", re.IGNORECASE)
_EPOCH: Final = re.compile(r"\bepoch\W{0,3}(\d+)", re.IGNORECASE)
_PROGRESS: Final = re.compile(r"(?<![\d.])(\d+)/(\d+)")
_SENTENCE: Final = re.compile(rf"(?P<name>accuracy|loss)\b[^:=]*[:=] *(?P<value>{NUMBER})$", re.IGNORECASE)
# A score that is named by its data only, as in `Loss: 1.9, Train: 0.5, Val: 0.4`.
_BARE: Final = re.compile(
    rf"\b(?P<name>val|valid|validation|test|dev)\s*[:=]\s*(?P<value>{NUMBER})(?!\s*/)", re.IGNORECASE
)
_THRESHOLD: Final = re.compile(r"@\s*\[?\s*$")  # before `IoU=0.50`
_COUNT: Final = re.compile(r" (?:iter|iteration|step|epoch|batch)$", re.IGNORECASE)  # `loss at iteration 5000`
_SCORES: Final = frozenset((
    "acc", "accuracy", "top1", "acc1", "acc@1", "f1", "auc", "auroc", "iou", "miou", "map", "ap", "dice", "psnr",
    "ssim", "bleu", "rouge", "precision", "recall", "score", "reward", "rewards", "rew", "return", "returns", "r2",
    "correlation", "prec",
))  # fmt: skip
_PRECISION_AT: Final = re.compile(r"m?ap\d+")  # map50
# Of held-out data, whatever it is called.
_OF_EVALUATION: Final = frozenset((
    "fid", "kid", "fvd", "lpips", "wer", "cer", "ter", "map", "miou", "bleu", "rouge", "psnr", "ssim",
))  # fmt: skip
# Beside the word loss: a part of the loss, or of an adversarial pair, which may rise while the model gets better.
_PARTS: Final = frozenset((
    "g", "d", "gen", "disc", "generator", "discriminator", "adv", "adversarial", "critic", "actor", "policy", "value",
    "pg", "vf", "v", "entropy", "kl", "aux", "auxiliary", "reg", "regularization", "box", "bbox", "cls", "obj", "dfl",
    "rpn", "mask", "commit", "commitment", "perceptual", "feat", "style", "td", "q", "qf", "qf1", "qf2",
))  # fmt: skip
_CROSS_ENTROPY: Final = re.compile("cross[_-]?entropy", re.IGNORECASE)
_DERIVED: Final = frozenset(
    ("best", "max", "min", "std", "stdev", "var", "target", "ema", "smoothed", "previous", "last")
)
_HELD_OUT: Final = re.compile(rf"\b{HELD_OUT}", re.IGNORECASE)
_DATA: Final = re.compile(rf"\b(?:{HELD_OUT}|(?:train|training)(?![a-z]))", re.IGNORECASE)
_NO_LOSS: Final = frozenset(("time", "ms", "s", "seconds", "duration", "latency", "cost", "per", "eta", "bits"))
_SETTINGS: Final = frozenset((
    "scale", "scaler", "scaling", "weight", "weights", "coef", "coefficient", "lambda", "threshold", "thresh", "thr",
    "smoothing", "code", "patience", "length", "len",
))  # fmt: skip
_PLAIN: Final = re.compile(r"[\s\w,;:|/()\[\]{}=\"'%.<>-]{0,24}")  # what may stand between two metrics as it is
_SPECIAL: Final = re.compile(r"([.^$*+?{}\[\]\\|()])")  # in a regular expression
_PADDED: Final = re.compile(r"(?<=[^\w ]) $")  # the space in `[ 9/12]` and `epoch: 9`, which `[10/12]` may lack
_SPACES: Final = re.compile(r"\\s\+| +(?!\*)")  # in a pattern
MOST_NAMED: Final = 3


@dataclass(frozen=True)
class GuessedMetrics:
    """A pattern that finds metrics, the line that shows it, and the metric that tells how good a trial is."""

    pattern: str
    sample: str
    metric: str
    values: tuple[float | None, ...] = ()  # of the metric, in the order of the output


@dataclass
class NoMetric:
    """The metrics of an output that do not rank trials, and why."""

    constant: set[str] = field(default_factory=set)  # the same value in all reports
    mixed: str = ""  # a sentence about one of two kinds of data
    parts: set[str] = field(default_factory=set)  # training losses that may rise while the model gets better

    def __str__(self) -> str:
        """One sentence about the most important of them; "" if there are none."""
        if self.mixed:
            return self.mixed
        if self.parts:
            names = ", ".join(sorted(self.parts)[:MOST_NAMED])
            return f"it reports only parts of a training loss ({names}), which do not tell how good a model is"
        if self.constant:
            names = ", ".join(sorted(self.constant)[:MOST_NAMED])
            return f"it reports no other metric than {names}, which had the same value each time"
        return ""


@dataclass(frozen=True)
class _Line:
    """A line of output with metrics, whose pattern also finds those of other lines of its kind."""

    text: str
    pattern: str
    subject: str  # which data its metrics are of
    row: Mapping[str, float | int | None]  # without the epoch
    has_epoch: bool
    at: int = 0  # its place among the lines with metrics
    epoch: str = ""  # the last number of an epoch in the output, if there is one


def guess_pattern(lines: Sequence[str], rejected: NoMetric | None = None) -> GuessedMetrics | None:
    """The pattern for the lines that tell most; None if none has a loss or a score. It adds to what is `rejected`."""
    rejected = NoMetric() if rejected is None else rejected
    kept = list[_Line]()
    epoch = ""
    for text in map(str.strip, lines):
        line = _read_line(text)
        if named := _EPOCH.search(text):
            epoch = named[1]
        if line and not (kept and kept[-1].text == text):
            kept.append(replace(line, at=len(kept), epoch=epoch))
    kinds = dict[tuple[str, str], list[_Line]]()
    for line in kept:
        kinds.setdefault((_SPACES.sub(" ", line.pattern), line.subject), []).append(line)
    best = _best_candidate(list(kinds.values()), rejected)
    if best is None:
        return None
    metric, kind = best
    if not is_held_out(metric) and _has_two_phases(kind):
        rejected.mixed = (
            f"it prints {metric} twice per epoch in lines of one form, as of training and of test data: "
            "have it print a word as `test` in those that rank"
        )
        return None
    pattern = _common_pattern(kind, kept)
    _, unread = parse_lines([_compiled(pattern)], lines)
    if metric in unread:
        rejected.mixed = unread[metric]
        return None
    return GuessedMetrics(pattern, kind[-1].text, metric, tuple(line.row[metric] for line in kind))


def _best_candidate(kinds: Sequence[list[_Line]], rejected: NoMetric) -> tuple[str, list[_Line]] | None:
    """The metric of all kinds of lines that tells most, with its kind, if one varies."""
    total = sum(map(len, kinds))
    repeated = [kind[0].at for kind in kinds if _varies(kind)]
    valued = list[tuple[tuple[Any, ...], str, list[_Line]]]()
    for kind in kinds:
        if repeated and kind[-1].at < min(repeated):
            continue  # before the training: of the settings, or of weights from elsewhere
        for name in kind[0].row:
            values = [line.row[name] for line in kind]
            if len(values) > 1 and len(set(values)) == 1:
                rejected.constant.add(name)
            elif _is_decoy(name):
                rejected.parts.add(name)
            else:
                is_of_epochs = not _is_of_batches(kind)
                is_evaluated, worth, is_not_of_training, *rest = _merit(name)
                rank = is_evaluated + is_of_epochs
                value = (_is_late(kind, total), rank, worth, is_not_of_training, is_of_epochs, *rest)
                valued.append(((*value, kind[0].has_epoch, len(kind), kind[-1].at), name, kind))
    if not valued:
        return None
    _, metric, kind = max(valued, key=lambda each: each[0])
    return metric, kind


def best_metric(names: Iterable[str], rejected: NoMetric | None = None) -> str:
    """Of the names of some metrics, the one that tells how good a trial is; "" if none does. It adds to `rejected`."""
    metrics = {name for name in names if _metric_name(name) not in ("", "epoch")}
    decoys = set(filter(_is_decoy, metrics))
    if rejected:
        rejected.parts |= decoys
    return max(sorted(metrics - decoys), key=_merit, default="")


def best_varied_metric(
    rows: Iterable[Mapping[str, float | int | None]], rejected: NoMetric | None = None
) -> tuple[str, tuple[float | None, ...]]:
    """Of the metrics in some rows, the best one that is not constant, and its values; "" if there is none."""
    values = dict[str, list[float | None]]()
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    varied = [name for name, own in values.items() if len(own) == 1 or len(set(own)) > 1]
    metric = best_metric(varied, rejected)
    return metric, tuple(values.get(metric, ()))


def is_held_out(name: str) -> bool:
    """Whether a metric is of validation or test data, by its name."""
    return _HELD_OUT.search(name.replace("_", " ")) is not None


def held_out_values(line: str) -> dict[str, float | int | None]:
    """The metrics of validation or test data in a line of output."""
    read = _read_line(line.strip())
    return {name: value for name, value in read.row.items() if is_held_out(name)} if read else {}


def find_decimal_comma(lines: Iterable[str]) -> str:
    """The first metric with a decimal comma, as `loss 3,2451`; "" if there is none."""
    for line in lines:
        for pair, name in _pairs(line, _PAIR):
            written = re.match(r"[\d.,]*\d", line[pair.start("value") :])
            if written and has_decimal_comma(written[0]):
                return f"{name} {written[0]}"
    return ""


def tells_more(metric: str, other: str) -> bool:
    """Whether one metric tells more than another about how good a trial is, by their names."""
    return _merit(metric)[:2] > _merit(other)[:2]


def _is_decoy(name: str) -> bool:
    """Whether a metric is a part of a training loss, as of an actor or a generator."""
    return _merit(name)[:2] == (False, 0)


def _merit(name: str) -> tuple[bool, int, bool, bool, bool]:
    """Of held-out data before training data, a score before a loss, and the latest value before one derived from it."""
    parts = {part.partition("@")[0] for part in _parts(_CROSS_ENTROPY.sub("loss", name))}
    is_evaluated = is_held_out(name) or not _OF_EVALUATION.isdisjoint(parts) or any(map(_PRECISION_AT.fullmatch, parts))
    kind = 1
    if guess_mode(name) == "max":
        kind = 2
    elif not _PARTS.isdisjoint(parts):
        kind = 0
    return is_evaluated, kind, "train" not in parts, _DERIVED.isdisjoint(parts), "test" not in parts


def _varies(kind: Sequence[_Line]) -> bool:
    return any(line.row != kind[0].row for line in kind)


def _is_late(kind: Sequence[_Line], total: int) -> bool:
    """Whether lines of a kind come until the second half of the output, if they come more than once."""
    return len(kind) == 1 or 2 * kind[-1].at >= total


def _is_of_batches(kind: Sequence[_Line]) -> bool:
    """Whether lines of a kind come several times in a row in an epoch, or all of them after some of its batches."""
    progress = {tuple(_PROGRESS.findall(line.text)[-1:]) for line in kind}
    if len(kind) > 1 and len(progress) == 1 and any(int(count) + 1 < int(of) for count, of in progress.pop()):
        return True
    return any(after.at == line.at + 1 and after.epoch == line.epoch for line, after in pairwise(kind))


def _has_two_phases(kind: Sequence[_Line]) -> bool:
    """Whether lines of a kind come in two parts of each epoch; in each, what they count, as batches, begins anew."""
    phases = dict[str, int]()  # by epoch
    before = (-1, -1)  # the count and the place of the line before
    for line in kind:
        if not line.epoch:
            return False
        counts = _PROGRESS.findall(line.text)
        count = int(counts[-1][0]) if counts else 0
        is_anew = count < before[0] or (not counts and line.at > before[1] + 1)
        phases[line.epoch] = phases.get(line.epoch, 0) + (line.epoch not in phases or is_anew)
        before = count, line.at
    whole = list(phases.values())[:-1] or phases.values()
    return set(whole) == {2}


def _common_pattern(kind: Sequence[_Line], lines: Sequence[_Line]) -> str:
    """A pattern for all lines of a kind, and for no other line with metrics if what is before it can tell."""
    pattern = kind[-1].pattern
    if any(line.pattern != pattern for line in kind):  # by their spaces
        pattern = _SPACES.sub(r"\\s+", pattern)
    match = _compiled(pattern).search(kind[-1].text)
    assert match is not None
    before = kind[-1].text[: match.start()]
    own = {line.at for line in kind}
    others = [line.text for line in lines if line.at not in own]
    _, gap, rest = pattern.partition(".*?")
    label = _compiled(rest).search(kind[-1].text, match.start()) if gap else None
    whole = _escape(kind[-1].text[: label.start()]) + rest if label else pattern
    for exact in (pattern, rf"(?<!\w){pattern}", f"^{_escape(before)}{pattern}", f"^{whole}"):
        search = _compiled(exact).search
        if all(search(line.text) for line in kind) and not any(map(search, others)):
            return exact
    return pattern


def _compiled(pattern: str) -> re.Pattern[str]:
    return Metrics(pattern=pattern).compiled[0]


@lru_cache(maxsize=4096)  # the lines of a progress bar come again
def _read_line(line: str) -> _Line | None:
    """The pattern for a line, if it has a metric. Numbers that are none of them may be any number."""
    pairs = _pairs(line, _PAIR)
    if any(guess_mode(name) == "min" for _, name in pairs) and not any(is_held_out(name) for _, name in pairs):
        pairs += [(pair, pair["name"].lower()) for pair in _BARE.finditer(line)]
        pairs.sort(key=lambda each: each[0].start())
    measured = [pair for pair, name in pairs if name != "epoch"]
    if _BATCH.search(line) and all(_AVERAGED.match(line, pair.start("value")) for pair in measured):
        pairs = _pairs(line, _AVERAGE)
    if all(name == "epoch" for _, name in pairs) and (sentence := _SENTENCE.search(line)):
        pairs = [(sentence, sentence["name"].lower())]
    epochs = [pair for pair, name in pairs if name == "epoch"]
    pairs = [(pair, name) for pair, name in pairs if pair not in epochs[1:]]
    words = _find_data(line, pairs)
    names = [f"{word[0].lower()}_{name}" if word else name for (_, name), word in zip(pairs, words, strict=True)]
    if set(names) <= {"epoch"}:
        return None
    end = min(each.start() for each in (pairs[0][0], *words) if each)
    pattern = ""
    for (pair, _), name in zip(pairs, names, strict=True):
        gap = line[end : pair.start("name")]
        label = line[pair.start("name") : pair.start("value")]
        word = "" if pattern else "".join(gap.split()[:1])  # that tells the data: the first gap begins with it
        gap = _escape(gap) if _PLAIN.fullmatch(gap) else f"{_escape(word)}.*?"
        label = _escape(label)
        if name == "epoch":
            label = _PADDED.sub(" *", label)
        pattern += f"{gap}{label}(?P<{name}>{{number}})"
        end = pair.end("value")
    row = _row(pattern, line)
    if row.keys() != set(names):
        return None
    has_epoch = row.pop("epoch", None) is not None
    return _Line(line, pattern, find_subject(line[: pairs[0][0].start("value")]), row, has_epoch)


def _pairs(line: str, pattern: re.Pattern[str]) -> list[tuple[re.Match[str], str]]:
    """The metrics of a line by a pattern for one, and its epoch, with their names; no thresholds and counters."""
    pairs = list[tuple[re.Match[str], str]]()
    for pair in pattern.finditer(line):
        name = _metric_name(pair["name"])
        counts = name != "epoch" and _COUNT.search(pair["name"]) is not None
        if name and not counts and not _THRESHOLD.search(line, 0, pair.start()):
            pairs.append((pair, name))
    return pairs


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
    matches = list[re.Match[str] | None]()
    for pair, name in pairs:
        before = list(_DATA.finditer(line, 0, pair.start("value")))
        if name != "epoch" and not before:
            return [None] * len(pairs)
        has_own = name == "epoch" or _DATA.search(name.replace("_", " ")) is not None
        matches.append(None if has_own else before[-1])
    return matches


def _parts(words: str) -> list[str]:
    return [part for part in re.split(r"[^A-Za-z0-9@]+", words.lower()) if part]


def _metric_name(words: str) -> str:
    """The name of a metric, as in `val_acc`, or "epoch"; "" for what is neither."""
    parts = _parts(words)
    name = re.sub(r"\W+", "_", "_".join(parts))
    kinds = {part.partition("@")[0] for part in parts}
    is_score = not _SCORES.isdisjoint(kinds) or any(map(_PRECISION_AT.fullmatch, kinds))
    is_loss = guess_mode(name) == "min" and _NO_LOSS.isdisjoint(parts) and not is_counter(name)
    if (is_score or is_loss) and _SETTINGS.isdisjoint(parts):
        return name
    return "epoch" if parts[-1:] == ["epoch"] or parts == ["ep"] else ""


def _escape(text: str) -> str:
    """The text in a pattern, with any number in place of a number, and any space in place of several."""
    parts = re.split(rf"(?<![\w.@]){NUMBER}", text)
    escaped = (re.sub(r"\s{2,}|\t", r"\\s+", _SPECIAL.sub(r"\\\1", part)) for part in parts)
    return re.sub(r"([(\[]) \{number", r"\1 *{number", "{number}".join(escaped))


def _row(pattern: str, line: str) -> dict[str, float | int | None]:
    """What a pattern finds in a line; {} if it is not valid, or finds a part of a number only."""
    try:
        metrics = Metrics(pattern=pattern, sample=line)
    except ValueError:
        return {}
    rows, unread = parse_lines(metrics.compiled, [line])
    return numeric_row(rows[0]) if len(rows) == 1 and not unread else {}
