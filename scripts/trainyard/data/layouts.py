"""Layouts of image folders: the split and class of each image, as in torchvision's ImageFolder or TinyImageNet.

- train/<class>/**/*.jpg and val/<class>/**/*.jpg; without the latter, the split is random
- <class>/**/*.jpg: the split is random
- train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt, wnids.txt, words.txt
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trainyard.data.archives import CollectedFile, Collection
from trainyard.data.decoding import EXTENSIONS
from trainyard.data.problems import Problem
from trainyard.data.sources import stratified_split
from trainyard.data.staged import SPLITS, DataError
from trainyard.utils.text import printable

TRAIN_FOLDER: Final = "train"
VAL_FOLDERS: Final = ("val", "valid", "validation", "test")  # the first one that exists
ANNOTATIONS: Final = "val_annotations.txt"
NO_CLASS: Final = "no class folder or annotation names its class"


@dataclass
class Layout:
    """The images of each split with their labels, and the problems of the layout."""

    classes: list[str]
    images: dict[str, list[tuple[CollectedFile, int]]]  # by split: file and label
    problems: list[Problem] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)  # readable names of classes that are named by an id
    ignored: int = 0  # files without an image's extension, or in no split


def find_layout(collection: Collection, files: Sequence[CollectedFile], *, val_fraction: float) -> Layout:
    """The layout of these files of a collection.

    Raises:
        DataError: no image is in a class folder, or none can be held out for validation.
    """
    base = _common_folder([file.name for file in files if _is_image(file.name)])
    inside = {file.name.removeprefix(base): file for file in files}
    images = {name: file for name, file in inside.items() if _is_image(name)}
    top = {name.split("/")[0] for name in images if "/" in name}
    if TRAIN_FOLDER in top:
        layout = _read_split_folders(collection, inside, images, top)
        base = f"{base}{TRAIN_FOLDER}/"
    else:
        layout = _read_class_folders(images, "", "train")
    _add_empty_classes(layout, collection, base)
    layout.problems += collection.rejected
    layout.ignored += len(inside) - len(images)
    if not layout.images["train"]:
        is_class = TRAIN_FOLDER in top and len(top) > 1
        remedy = "; if `train` is a class, move all class folders into a folder `train`" if is_class else ""
        raise DataError(
            f"{collection.path}: no image is in a class folder; expected train/<class>/*.jpg and "
            f"val/<class>/*.jpg, or <class>/*.jpg{remedy}"
        )
    if "val" not in layout.images:
        train = layout.images["train"]
        parts = stratified_split(np.array([label for _, label in train]), val_fraction)
        layout.images = {name: [train[index] for index in part] for name, part in zip(SPLITS, parts, strict=True)}
        if not layout.images["val"]:
            raise DataError(
                f"{collection.path}: no image can be held out for validation, as each class has one only: add images, "
                "or val/<class>/*.jpg beside train/<class>/*.jpg"
            )
    return layout


def _common_folder(images: Sequence[str]) -> str:
    """The path that all images have in common, such as `tiny-imagenet-200/` in its zip; not part of the layout."""
    base = ""
    while images:
        first, _, below = images[0].removeprefix(base).partition("/")
        deeper = f"{base}{first}/"
        is_common = first != TRAIN_FOLDER and below and all(name.startswith(deeper) for name in images)
        if not is_common or not any("/" in name.removeprefix(deeper) for name in images):
            break
        base = deeper
    return base


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _read_split_folders(
    collection: Collection, inside: dict[str, CollectedFile], images: dict[str, CollectedFile], top: set[str]
) -> Layout:
    """A layout with a folder `train` and possibly one of VAL_FOLDERS."""
    layout = _read_class_folders(
        images, f"{TRAIN_FOLDER}/", "train", listed=_lines(collection, inside.get("wnids.txt"))
    )
    annotations = inside.get(f"val/{ANNOTATIONS}")
    val_folder = "val" if annotations else next((name for name in VAL_FOLDERS if name in top), None)
    if val_folder:
        val_images = _read_annotations(layout, collection, annotations, images) if annotations else images
        val = _read_class_folders(val_images, f"{val_folder}/", "val", listed=layout.classes)
        layout.images["val"] = val.images["val"]
        layout.problems += val.problems
    layout.ignored += sum(name.split("/")[0] not in (TRAIN_FOLDER, val_folder) for name in images)
    words = _lines(collection, inside.get("words.txt"))
    classes = set(layout.classes)
    layout.titles = {name: title for name, _, title in (line.partition("\t") for line in words) if name in classes}
    return layout


def _read_class_folders(
    images: dict[str, CollectedFile], prefix: str, split: str, listed: Sequence[str] = ()
) -> Layout:
    """Images whose class is the first folder below `prefix`; `listed` are the classes if they are known."""
    members = [(name.removeprefix(prefix), file) for name, file in images.items() if name.startswith(prefix)]
    classes = sorted(listed or {name.split("/")[0] for name, _ in members if "/" in name})
    label_of = {name: label for label, name in enumerate(classes)}
    layout = Layout(classes, {split: []})
    for name, file in members:
        folder, inside, _ = name.partition("/")
        if not inside:
            layout.problems.append(Problem(file.name, split, "image without label", NO_CLASS))
        elif folder not in label_of:
            layout.problems.append(Problem(file.name, split, "unknown class", f"{folder!r} is not a training class"))
        else:
            layout.images[split].append((file, label_of[folder]))
    return layout


def _add_empty_classes(layout: Layout, collection: Collection, prefix: str) -> None:
    """Add a problem for each class (a folder, or listed) without a training image."""
    used = {layout.classes[label] for _, label in layout.images["train"]}
    used |= {each.file.removeprefix(prefix).split("/")[0] for each in layout.problems}  # these are already problems
    found = {name.removeprefix(prefix).split("/")[0] for name in collection.folders if name.startswith(prefix)}
    for name in sorted((found | set(layout.classes)) - used - {""}):
        layout.problems.append(Problem(f"{prefix}{name}", "train", "class without images"))


def _read_annotations(
    layout: Layout, collection: Collection, annotations: CollectedFile, images: dict[str, CollectedFile]
) -> dict[str, CollectedFile]:
    """TinyImageNet's validation images by the paths that they would have in class folders.

    A line is `val_0.JPEG <tab> n03444034 <tab> bounding box`.
    """
    by_name = {name.rpartition("/")[2]: file for name, file in images.items() if name.startswith("val/")}
    folders = dict[str, str]()
    for number, line in enumerate(_lines(collection, annotations), start=1):
        name, wnid = [*line.split("\t"), ""][:2]
        if name in by_name and name not in folders:
            folders[name] = f"{wnid}/"
        else:
            layout.problems.append(Problem(name, "val", "label without image", f"line {number} of {annotations.name}"))
    return {f"val/{folders.get(name, '')}{name}": file for name, file in by_name.items()}


def _lines(collection: Collection, file: CollectedFile | None) -> list[str]:
    if file is None:
        return []
    try:
        content = collection.read(file)
    except OSError as error:
        raise DataError(f"{collection.path}: {printable(file.name)} cannot be read ({error})") from None
    return [line for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
