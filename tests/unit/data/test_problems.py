"""Irregular files, folders and archives: each is handled and counted, or listed in `problems.csv`."""

import contextlib
import csv
import io
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imagesets import pixels, write_image, write_tiny_imagenet, write_tree
from PIL import Image
from trainyard.config.datasets import ImageFolder
from trainyard.data import archives
from trainyard.data.staged import DataError, StagedImageMeta
from trainyard.data.staging import stage
from trainyard.utils.errors import UserError

IMAGES, LABELS = pixels(12, (16, 16, 3)), np.arange(12) % 3
FIRST = "train/class0/00000.png"


@pytest.fixture
def tree(tmp_path):
    """Twelve training and six validation images in three classes."""
    root = write_tree(tmp_path / "set", IMAGES, LABELS)
    return write_tree(root, pixels(6, (16, 16, 3), seed=1), np.arange(6) % 3, split="val")


def problems(folder):
    with open(folder / "problems.csv", newline="") as file:
        return list(csv.DictReader(file))


# ---- one file that is odd


@dataclass
class Case:
    """A replacement of the first training image, and the expected result."""

    name: str
    content: bytes = b""
    problem: str = ""  # in problems.csv, for one that cannot be used
    detail: str = ""
    handled: dict = field(default_factory=dict)  # in meta.json, for one that can
    result: np.ndarray | None = None  # its pixels


def encoded(image, form="PNG", **options):
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


def rotated(form):
    """An image with an EXIF orientation of 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.fromarray(IMAGES[0]), form, exif=exif)


PICTURE = Image.fromarray(IMAGES[0])
SQUARE = Image.fromarray(np.kron(np.arange(4, dtype=np.uint8).reshape(2, 2) * 60, np.ones((8, 8), np.uint8)))
PNG, JPEG = encoded(PICTURE), encoded(PICTURE, "JPEG")
JPEG_PICTURE = Image.open(io.BytesIO(JPEG))
EPS = encoded(PICTURE, "EPS")
HUGE_HEAD = b"IHDR" + (20000).to_bytes(4, "big") * 2 + PNG[24:29]
HUGE_PNG = PNG[:12] + HUGE_HEAD + zlib.crc32(HUGE_HEAD).to_bytes(4, "big") + PNG[33:]
AVIF = encoded(PICTURE, "AVIF")
# An EXIF whose header is missing, and an orientation that is not a number.
NO_EXIF = b"Exif\0\0" + bytes(20)
BYTES_EXIF = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x07\0\x01\0\0\0\x06" + bytes(7)
SIXTEEN_BITS = np.arange(256, dtype=np.uint16).reshape(16, 16) * 256 + 255


def as_rgb(image):
    return np.asarray(image.convert("RGB"))


CASES = [
    Case("zero bytes", b"", "empty file"),
    Case("truncated JPEG", JPEG[: len(JPEG) // 2], "truncated"),
    Case("truncated PNG", PNG[: len(PNG) // 2], "truncated"),
    Case("only the head of a PNG", PNG[:20], "truncated"),
    Case("text", b"<!DOCTYPE html> Not found", "not an image", "begins with b'<!DOCTYPE ht'"),
    Case("random bytes", bytes(range(256)), "not an image"),
    Case("PostScript, which Ghostscript would run", EPS, "not an image"),
    Case("bit rot", PNG[:60] + bytes([PNG[60] ^ 255]) + PNG[61:], "damaged"),
    Case("more pixels than one would want", HUGE_PNG, "too many pixels"),
    Case("other size", encoded(PICTURE.resize((8, 20))), "other size", "20x8 pixels, others are 16x16"),
    Case("floating point", encoded(Image.fromarray(np.ones((16, 16), np.float32)), "TIFF"), "floating-point pixels"),
    Case("32 bits", encoded(Image.fromarray(np.full((16, 16), 70000, np.int32)), "TIFF"), "32-bit pixels"),
    Case("grey", encoded(SQUARE), handled={"grey": 1}, result=as_rgb(SQUARE)),
    Case("black and white", encoded(SQUARE.convert("1")), handled={"grey": 1}, result=as_rgb(SQUARE.convert("1"))),
    Case("palette", encoded(PICTURE.quantize(9)), handled={"palette": 1}, result=as_rgb(PICTURE.quantize(9))),
    Case("RGBA", encoded(PICTURE.convert("RGBA")), handled={"transparent": 1}, result=IMAGES[0]),
    Case("grey and alpha", encoded(SQUARE.convert("LA")), handled={"transparent": 1}, result=as_rgb(SQUARE)),
    Case("CMYK", encoded(PICTURE.convert("CMYK"), "TIFF"), handled={"CMYK": 1}, result=as_rgb(PICTURE.convert("CMYK"))),
    Case("16 bits", encoded(Image.fromarray(SIXTEEN_BITS)), handled={"16 bits": 1},
         result=np.repeat((SIXTEEN_BITS >> 8).astype(np.uint8)[..., None], 3, axis=2)),
    Case("EXIF says turned", rotated("PNG"), handled={"rotated by EXIF": 1}, result=np.rot90(IMAGES[0], -1)),
    Case("damaged EXIF", encoded(PICTURE, exif=NO_EXIF), result=IMAGES[0]),
    Case("damaged EXIF of a JPEG", encoded(PICTURE, "JPEG", exif=NO_EXIF, dpi=(72, 72)), result=as_rgb(JPEG_PICTURE)),
    Case("EXIF says bytes", encoded(PICTURE, exif=BYTES_EXIF), result=IMAGES[0]),
    Case("damaged AVIF", AVIF.replace(b"pitm", b"pitx"), "damaged", "Failed to decode image"),
    Case("several frames", encoded(SQUARE, "GIF", save_all=True, append_images=[SQUARE.rotate(90)]),
         handled={"first frame": 1, "palette": 1}, result=as_rgb(SQUARE)),
    Case("JPEG called PNG", JPEG, result=as_rgb(JPEG_PICTURE)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_irregular_file_is_converted_and_counted_or_listed(tree, tmp_path, case):
    (tree / FIRST).write_bytes(case.content)
    source = {"source": "imagefolder", "root": str(tree)}
    folder = tmp_path / "staged"
    if case.problem:
        with pytest.raises(DataError, match=f"1 x {case.problem}(.|\n)*{FIRST}(.|\n)*on_bad_image: skip"):
            stage(ImageFolder(**source), folder)
        assert not (folder / "meta.json").exists()
        assert not list(folder.glob("*.npy"))
        (row,) = problems(folder)
        assert (row["file"], row["split"], row["problem"]) == (FIRST, "train", case.problem)
        assert case.detail in row["detail"]
    staged = stage(ImageFolder(**source, on_bad_image="skip"), folder)
    train = staged.split("train")
    expected = [IMAGES[index] for index in np.argsort(LABELS, kind="stable")]
    expected = expected[1:] if case.problem else [case.result, *expected[1:]]
    assert np.array_equal(train.images, np.stack(expected))
    assert train.labels.tolist() == sorted(LABELS)[1 if case.problem else 0 :]
    meta = staged.require(StagedImageMeta)
    assert meta.handled == case.handled
    assert meta.problems == ({case.problem: 1} if case.problem else {})
    assert [row["problem"] for row in problems(folder)] == [case.problem] * bool(case.problem)
    pixels_of = train.images.reshape(-1, 3).astype(np.float64)
    assert meta.mean == pytest.approx(pixels_of.mean(axis=0)), "without the image that was left out"
    assert meta.std == pytest.approx(pixels_of.std(axis=0))


def test_all_bad_images_are_listed_before_staging_fails(tree, tmp_path):
    bad = sorted((tree / "train").rglob("*.png"))[:7]
    for path in bad:
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"7 x empty file(.|\n)*and 2 more"):
        stage(ImageFolder(source="imagefolder", root=str(tree)), tmp_path / "staged")
    assert [row["file"] for row in problems(tmp_path / "staged")] == [str(path.relative_to(tree)) for path in bad]


def test_images_are_resized_to_the_configured_size_and_cropped_at_the_center(tree, tmp_path):
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = 30
    write_image(tree / FIRST, wide)
    staged = stage(ImageFolder(source="imagefolder", root=str(tree), height=8, width=8), tmp_path / "staged")
    image = staged.split("train").images[0]
    assert image.shape == (8, 8, 3)
    assert np.all(image[:, 1:-1] == 30)
    assert staged.require(StagedImageMeta).handled == {"resized": 18}


# ---- a layout that is odd


def copy(tree, source, target):
    (tree / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tree / source, tree / target)


def odd_name(tree, name):
    """A file that is not an image, whose name is given in bytes."""
    Path(os.fsdecode(os.fsencode(tree / "train/class0") + b"/" + name)).write_bytes(b"no image")


def huge(tree, name):
    """A file of 1 TiB without any block on the disk."""
    with open(tree / name, "wb") as file:
        file.truncate(2**40)


DEEP = "/".join(["d" * 200] * 25)  # longer than a path can be


def deep_folders(tree):
    folder = os.open(tree / "train/class0", os.O_RDONLY)
    for name in DEEP.split("/"):
        os.mkdir(name, dir_fd=folder)
        outer, folder = folder, os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(outer)
    os.close(folder)


LAYOUTS = [
    ("empty class", lambda tree: (tree / "train/class9").mkdir(),
     [("train/class9", "class without images")], {}),
    ("class to validate with only", lambda tree: copy(tree, "val/class0/00000.png", "val/other/x.png"),
     [("val/other/x.png", "unknown class")], {}),
    ("image in no class", lambda tree: copy(tree, FIRST, "train/x.png"),
     [("train/x.png", "image without label")], {}),
    ("files that are no images", lambda tree: (tree / "train/class0/notes.txt").write_text("?"), [], {"ignored": 1}),
    ("a folder without labels", lambda tree: copy(tree, FIRST, "test/x.png"), [], {"ignored": 1}),
    ("hidden files", lambda tree: copy(tree, FIRST, "train/class0/._x.png"), [], {}),
    ("a link to an image", lambda tree: (tree / "val/class1/x.png").symlink_to(tree / FIRST),
     [], {}),
    ("a link to nowhere", lambda tree: (tree / "val/class1/x.png").symlink_to("/nowhere"),
     [("val/class1/x.png", "unreadable")], {}),
    ("a link to itself", lambda tree: (tree / "train/class1/loop").symlink_to(tree / "train"), [], {}),
    ("a link in a circle", lambda tree: (tree / "train/class1/x.png").symlink_to("x.png"),
     [("train/class1/x.png", "unreadable")], {}),
    ("a name that is not UTF-8", lambda tree: odd_name(tree, b"caf\xe9.png"),
     [("train/class0/caf\\xe9.png", "not an image")], {}),
    ("a name with a line break", lambda tree: odd_name(tree, b"a\n\x1b[1mb.png"),
     [("train/class0/a\\n\\x1b[1mb.png", "not an image")], {}),
    ("a pipe", lambda tree: os.mkfifo(tree / "train/class0/x.png"), [("train/class0/x.png", "not a file")], {}),
    ("a device", lambda tree: (tree / "train/class0/x.png").symlink_to("/dev/zero"),
     [("train/class0/x.png", "not a file")], {}),
    ("a folder called as an image", lambda tree: (tree / "train/class0/x.png").mkdir(), [], {}),
    ("a file of 1 TiB", lambda tree: huge(tree, "train/class0/x.png"),
     [("train/class0/x.png", "too large")], {}),
    ("a file of 1 TiB that is no image", lambda tree: huge(tree, "train/class0/x.h5"), [], {"ignored": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "listed", "handled"), LAYOUTS, ids=[row[0] for row in LAYOUTS])
def test_an_irregular_layout_is_counted_or_listed(tree, tmp_path, name, make, listed, handled):
    make(tree)
    dataset = ImageFolder(source="imagefolder", root=str(tree), on_bad_image="skip")
    staged = stage(dataset, tmp_path / "staged")
    rows = [(row["file"], row["problem"]) for row in problems(tmp_path / "staged")]
    assert rows == listed
    assert staged.require(StagedImageMeta).handled == handled
    if listed:
        with pytest.raises(DataError, match=listed[0][1]):
            stage(ImageFolder(source="imagefolder", root=str(tree)), tmp_path / "staged")


@pytest.mark.parametrize("link", ["val", "val/class0"])
def test_a_folder_may_be_linked_twice(tree, tmp_path, link):
    """As in torchvision: to validate on training images is a quick way to find out whether a model can learn them."""
    shutil.rmtree(tree / link)
    (tree / link).symlink_to(tree / link.replace("val", "train"))
    staged = stage(ImageFolder(source="imagefolder", root=str(tree)), tmp_path / "staged")
    train, val = staged.split("train"), staged.split("val")
    assert np.array_equal(train.images[train.labels == 0], val.images[val.labels == 0])


def test_a_folder_that_cannot_be_read_is_listed(tree, tmp_path):
    deep_folders(tree)
    with pytest.raises(DataError, match=r"1 x unreadable\n.*\(File name too long\)"):
        stage(ImageFolder(source="imagefolder", root=str(tree)), tmp_path / "staged")


def test_a_list_of_classes_that_cannot_be_read_is_an_error(tree, tmp_path):
    huge(tree, "wnids.txt")
    with pytest.raises(DataError, match=r"set: wnids.txt cannot be read \(too large: 1,099,511,627,776 bytes\)"):
        stage(ImageFolder(source="imagefolder", root=str(tree)), tmp_path / "staged")


def test_a_class_whose_name_is_not_utf8_is_escaped(tree, tmp_path):
    (tree / "train/class0").rename(os.fsdecode(os.fsencode(tree / "train") + b"/caf\xe9"))
    shutil.rmtree(tree / "val")
    staged = stage(ImageFolder(source="imagefolder", root=str(tree)), tmp_path / "staged")
    assert staged.meta.classes == ["caf\\xe9", "class1", "class2"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_a_source_that_is_neither_a_folder_nor_a_file_is_an_error(tmp_path, make):
    make(tmp_path / "set.zip")
    with pytest.raises(UserError, match=r"set.zip: is not a folder, a zip or a tar, but a device or a pipe"):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "set.zip")), tmp_path / "staged")


def test_a_class_without_usable_images_keeps_its_label(tree, tmp_path):
    for path in (tree / "train/class1").iterdir():
        path.write_bytes(b"no image")
    staged = stage(ImageFolder(source="imagefolder", root=str(tree), on_bad_image="skip"), tmp_path / "staged")
    assert staged.require(StagedImageMeta).counts["train"] == [4, 0, 4]
    assert staged.meta.classes == ["class0", "class1", "class2"]


def test_a_split_without_usable_images_is_an_error(tree, tmp_path):
    for path in (tree / "val").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="no image is left in the val split"):
        stage(ImageFolder(source="imagefolder", root=str(tree), on_bad_image="skip"), tmp_path / "staged")


def test_the_lists_of_tiny_imagenet_are_compared_with_its_files(tmp_path):
    root = tmp_path / "tiny"
    images = pixels(8, (16, 16, 3)), np.arange(8) % 2
    wnids = write_tiny_imagenet(root, images, (pixels(4, (16, 16, 3), 1), np.arange(4) % 2), classes=2)
    (root / "val/images/val_0000.JPEG").unlink()
    write_image(root / "val/images/val_9999.JPEG", images[0][0][::-1], format="PNG")
    with open(root / "val/val_annotations.txt", "a") as file:
        file.write("val_0001.JPEG\tn00000000\t0\t0\t1\t1\n")
    lines = (root / "val/val_annotations.txt").read_text().replace(f"val_0002.JPEG\t{wnids[0]}", "val_0002.JPEG\tn1")
    (root / "val/val_annotations.txt").write_text(lines)
    with open(root / "wnids.txt", "a") as file:
        file.write("n99999999\n")
    write_image(root / "train/n55555555/images/x.JPEG", images[0][1][::-1], format="PNG")
    stage(ImageFolder(source="imagefolder", root=str(root), on_bad_image="skip"), tmp_path / "staged")
    assert {(row["file"], row["problem"]) for row in problems(tmp_path / "staged")} == {
        ("val_0000.JPEG", "label without image"),
        ("val_0001.JPEG", "label without image"),  # it has one already
        ("val/images/val_0002.JPEG", "unknown class"),
        ("val/images/val_9999.JPEG", "image without label"),
        ("train/n99999999", "class without images"),
        ("train/n55555555/images/x.JPEG", "unknown class"),
    }


# ---- archives that are odd, or hostile


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def tarred(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                content = b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


GOOD = {
    f"train/class{label}/{index}.png": encoded(Image.fromarray(image))
    for index, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True))
}


@pytest.mark.parametrize("name", ["../../evil.png", "/tmp/evil.png", "train/class0/../../../evil.png"])
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_path_outside_the_archive_is_listed_and_not_written_to(tmp_path, name, kind):
    path = tmp_path / "inner/deep" / f"set.{kind}"
    path.parent.mkdir(parents=True)
    (zipped if kind == "zip" else tarred)(path, GOOD | {name: PNG})
    with pytest.raises(DataError, match="1 x path leaves the archive"):
        stage(ImageFolder(source="imagefolder", root=str(path)), tmp_path / "staged")
    staged = stage(ImageFolder(source="imagefolder", root=str(path), on_bad_image="skip"), tmp_path / "staged")
    assert sum(map(sum, staged.require(StagedImageMeta).counts.values())) == 12
    assert not list(tmp_path.rglob("evil*"))
    assert not Path("/tmp/evil.png").exists()


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    tarred(tmp_path / "set.tar.gz", GOOD | {"train/class0/x.png": "/etc/passwd"})
    with pytest.raises(DataError, match="1 x link in an archive"):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "set.tar.gz")), tmp_path / "staged")


def test_a_sparse_file_in_an_archive_is_listed(tmp_path):
    sparse = tarfile.TarInfo("train/class0/sparse.png")
    sparse.type = tarfile.GNUTYPE_SPARSE
    tarred(tmp_path / "set.tar", GOOD, mode="w")
    with tarfile.open(tmp_path / "set.tar", "a") as archive:
        archive.addfile(sparse)
    with pytest.raises(DataError, match="1 x sparse file in an archive"):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "set.tar")), tmp_path / "staged")


@pytest.mark.parametrize("hidden", [".", "./.cache", "./.cache/deep"])
def test_a_tar_of_the_current_folder_has_no_extra_class(tmp_path, hidden):
    """`tar cf set.tar .` also lists the folder itself and its hidden files."""
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        folder = tarfile.TarInfo(hidden)
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in GOOD.items():
            member = tarfile.TarInfo(f"./{name.removeprefix('train/')}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    staged = stage(ImageFolder(source="imagefolder", root=str(tmp_path / "set.tar")), tmp_path / "staged")
    assert staged.meta.classes == ["class0", "class1", "class2"]
    assert staged.require(StagedImageMeta).problems == {}


def test_a_truncated_compressed_tar_is_an_error(tmp_path):
    path = tmp_path / "set.tar.gz"
    tarred(path, GOOD)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"set.tar.gz: is damaged or truncated"):
        stage(ImageFolder(source="imagefolder", root=str(path)), tmp_path / "staged")
    assert not list((tmp_path / "staged").rglob("*.t*"))


def test_a_damaged_member_of_an_archive_is_listed(tmp_path):
    path = tmp_path / "set.zip"
    zipped(path, GOOD)
    content = bytearray(path.read_bytes())
    content[content.index(b"4.png") + 60] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"1 x unreadable(.|\n)*train/class1/4.png.*damaged in the zip"):
        stage(ImageFolder(source="imagefolder", root=str(path)), tmp_path / "staged")


# The fields of a member in a zip's directory: how to pack a wrong value, its place there, and what is reported.
LIES = {
    "compressed size": ("<I", 20, 0xFFFFFFF0, r"unreadable \(too large: 4,294,967,280 bytes\)"),
    "size": ("<I", 24, 2**28, r"unreadable \(damaged in the zip: wrong checksum\)"),
    "larger size": ("<I", 24, 2**28 + 1, r"too large \(268,435,457 bytes\)"),
    "offset": ("<I", 42, 0xFFFFFFF0, r"unreadable \(damaged in the zip: no local header\)"),
}


@pytest.mark.parametrize("field", LIES)
def test_a_member_about_which_the_directory_of_a_zip_lies_is_listed(tmp_path, field):
    layout, place, value, reason = LIES[field]
    path = tmp_path / "set.zip"
    zipped(path, GOOD)
    content = bytearray(path.read_bytes())
    struct.pack_into(layout, content, content.index(b"PK\1\2") + place, value)
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"1 x .*\n  train/class0/0.png: {reason}"):
        stage(ImageFolder(source="imagefolder", root=str(path)), tmp_path / "staged")


def test_an_archive_of_an_unknown_version_is_an_error(tmp_path):
    zipped(tmp_path / "set.zip", GOOD)
    content = bytearray((tmp_path / "set.zip").read_bytes())
    content[content.index(b"PK\1\2") + 6] = 255
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"set.zip: is not a readable zip \(zip file version 25.5\)"):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "set.zip")), tmp_path / "staged")


def test_a_tar_with_an_impossible_time_is_an_error(tmp_path):
    with tarfile.open(tmp_path / "set.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("train/class0/x.png")
        member.pax_headers = {"mtime": "inf"}
        archive.addfile(member)
    with pytest.raises(UserError, match=r"set.tar: is not a readable tar \(cannot convert float infinity to integer\)"):
        stage(ImageFolder(source="imagefolder", root=str(tmp_path / "set.tar")), tmp_path / "staged")


@settings(deadline=None, derandomize=True, max_examples=150)
@given(data=st.data(), kind=st.sampled_from(["zip", "tar"]))
def test_an_archive_with_any_bytes_changed_is_listed_and_read_or_is_an_error(data, kind):
    with TemporaryDirectory() as folder:
        path = Path(folder, f"set.{kind}")
        zipped(path, GOOD) if kind == "zip" else tarred(path, GOOD, mode="w")
        content = bytearray(path.read_bytes())
        header = (
            content.index(b"PK\1\2") if kind == "zip" else data.draw(st.sampled_from([0, 100]))
        )  # of the first file
        for _ in range(data.draw(st.integers(1, 3))):
            odd = st.sampled_from([b"\0", b"\x80\0\0\0", b"\xff" * 8, b"9" * 11])
            new = data.draw(odd | st.binary(max_size=12))
            place = data.draw(st.integers(header, header + 60) | st.integers(0, len(content)))
            content[place : place + len(new)] = new
        path.write_bytes(content[: data.draw(st.integers(len(content) - 600, len(content) + 50))])
        with contextlib.suppress(UserError):
            collection = archives.open_collection(path, Path(folder))
            for file in collection.files():
                with contextlib.suppress(OSError):
                    assert len(collection.read(file)) == file.size
