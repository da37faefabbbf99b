"""Which image of a collection belongs to which split and class: ImageFolder's layout, and TinyImageNet's.

- train/<class>/**/*.jpg and val/<class>/**/*.jpg; without the latter, a split is drawn
- <class>/**/*.jpg: a split is drawn
- train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt, wnids.txt, words.txt
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trainyard.data.archives import Collection, File
from trainyard.data.decoding import EXTENSIONS
from trainyard.data.problems import Problem
from trainyard.data.sources import stratified_split
from trainyard.data.staged import SPLITS, DataError

TRAIN_FOLDER: Final = "train"
VAL_FOLDERS: Final = ("val", "valid", "validation", "test")  # the first that is there
ANNOTATIONS: Final = "val_annotations.txt"


@dataclass
class Layout:
    """The images by split, with their labels, and what does not fit in."""

    classes: list[str]
    images: dict[str, list[tuple[File, int]]]  # by split: file and label
    problems: list[Problem] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)  # a class in words, where its name is a number
    ignored: int = 0  # files that are no images, by their names


def find_layout(collection: Collection, files: Sequence[File], *, val_fraction: float, seed: int) -> Layout:
    """Sort out these files of a collection.

    Raises:
        DataError: there is no image in a folder of a class.
    """
    base = _base([file.name for file in files if _is_image(file.name)])
    inside = {file.name.removeprefix(base): file for file in files}
    images = {name: file for name, file in inside.items() if _is_image(name)}
    top = {name.split("/")[0] for name in images if "/" in name}
    if TRAIN_FOLDER in top:
        layout, base = _with_train_folder(collection, inside, images, top), f"{base}{TRAIN_FOLDER}/"
    else:
        layout = _folders(images, "", "train")
    _look_for_empty(layout, collection, base)
    layout.problems += collection.refused
    layout.ignored += len(inside) - len(images)
    if not layout.images["train"]:
        raise DataError(f"{collection.path}: holds no image in a folder of its class; expected train/<class>/*.jpg and "
                        "val/<class>/*.jpg, or <class>/*.jpg")  # fmt: skip
    if "val" not in layout.images:
        _draw_split(layout, val_fraction, seed)
    return layout


def _base(images: Sequence[str]) -> str:
    """The folders that all images lie in, as `tiny-imagenet-200/` in its zip: not part of the layout."""
    base = ""
    while images:
        first, _, below = images[0].removeprefix(base).partition("/")
        deeper = f"{base}{first}/"
        together = first != TRAIN_FOLDER and below and all(name.startswith(deeper) for name in images)
        if not together or not any("/" in name.removeprefix(deeper) for name in images):
            break
        base = deeper
    return base


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _with_train_folder(
    collection: Collection, inside: dict[str, File], images: dict[str, File], top: set[str]
) -> Layout:
    layout = _folders(images, f"{TRAIN_FOLDER}/", "train", listed=_lines(collection, inside.get("wnids.txt")))
    annotations = inside.get(f"val/{ANNOTATIONS}")
    val_folder = "val" if annotations else next((name for name in VAL_FOLDERS if name in top), None)
    if annotations:
        _annotated(layout, collection, annotations, {name: file for name, file in images.items() if name[:4] == "val/"})
    elif val_folder:
        val = _folders(images, f"{val_folder}/", "val", listed=layout.classes)
        layout.images["val"], layout.problems = val.images["val"], layout.problems + val.problems
    layout.ignored += sum(name.split("/")[0] not in (TRAIN_FOLDER, val_folder) for name in images)
    words, classes = _lines(collection, inside.get("words.txt")), set(layout.classes)
    layout.titles = {name: title for name, _, title in (line.partition("\t") for line in words) if name in classes}
    return layout


def _folders(images: dict[str, File], prefix: str, split: str, listed: Sequence[str] = ()) -> Layout:
    """Images whose class is the first folder below `prefix`; the classes are those `listed`, or else those found."""
    members = [(name.removeprefix(prefix), file) for name, file in images.items() if name.startswith(prefix)]
    classes = sorted(listed or {name.split("/")[0] for name, _ in members if "/" in name})
    label_of = {name: label for label, name in enumerate(classes)}
    layout = Layout(classes, {split: []})
    for name, file in members:
        folder, inside, _ = name.partition("/")
        if not inside:
            layout.problems.append(Problem(file.name, split, "image without label", "is in no folder of a class"))
        elif folder not in label_of:
            layout.problems.append(Problem(file.name, split, "unknown class", f"{folder} is not a training class"))
        else:
            layout.images[split].append((file, label_of[folder]))
    return layout


def _look_for_empty(layout: Layout, collection: Collection, prefix: str) -> None:
    """Folders of classes, and classes that are listed, without an image to train on."""
    held = {layout.classes[label] for _, label in layout.images["train"]}
    held |= {each.file.removeprefix(prefix).split("/")[0] for each in layout.problems}  # those have been told already
    found = {name.removeprefix(prefix).split("/")[0] for name in collection.folders if name.startswith(prefix)}
    for name in sorted((found | set(layout.classes)) - held - {""}):
        layout.problems.append(Problem(f"{prefix}{name}", "train", "class without images"))


def _annotated(layout: Layout, collection: Collection, annotations: File, images: dict[str, File]) -> None:
    """TinyImageNet's validation images: `val_0.JPEG <tab> n03444034 <tab> box` a line."""
    label_of = {name: label for label, name in enumerate(layout.classes)}
    by_name = {name.rpartition("/")[2]: file for name, file in images.items()}
    chosen: list[tuple[File, int]] = []
    for number, line in enumerate(_lines(collection, annotations), start=1):
        name, _, rest = line.partition("\t")
        wnid, file = rest.split("\t")[0], by_name.pop(name, None)
        if file is None:
            layout.problems.append(Problem(name, "val", "label without image", f"line {number} of {annotations.name}"))
        elif wnid not in label_of:
            layout.problems.append(Problem(file.name, "val", "unknown class", f"{wnid!r} is not a training class"))
        else:
            chosen.append((file, label_of[wnid]))
    missing = f"has no line in {annotations.name}"
    layout.problems += [Problem(file.name, "val", "image without label", missing) for file in by_name.values()]
    layout.images["val"] = sorted(chosen, key=lambda item: item[0].name)


def _lines(collection: Collection, file: File | None) -> list[str]:
    if file is None:
        return []
    return [line for line in collection.read(file).decode("utf-8", "replace").splitlines() if line.strip()]


def _draw_split(layout: Layout, val_fraction: float, seed: int) -> None:
    images = layout.images["train"]
    parts = stratified_split(np.array([label for _, label in images]), val_fraction, seed)
    layout.images = {name: [images[index] for index in part] for name, part in zip(SPLITS, parts, strict=True)}
