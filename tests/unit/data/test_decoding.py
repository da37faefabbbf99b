"""Both decoders of JPEGs result in the same pixels, and unusual JPEGs are left to Pillow."""

import io

import numpy as np
import pytest
from imagesets import pixels
from PIL import Image, ImageFilter, ImageOps
from trainyard.data import decoding
from trainyard.data.decoding import ImageFormat, decode_image

SMOOTH = Image.fromarray(pixels(1, (47, 61, 3))[0]).filter(ImageFilter.GaussianBlur(1.5))
FORM = ImageFormat(height=47, width=61, is_resized=False)


def jpeg(image=SMOOTH, **options):
    content = io.BytesIO()
    image.save(content, "JPEG", **options)
    return content.getvalue()


VARIANTS = [
    {"quality": quality, "subsampling": subsampling, "progressive": progressive}
    for quality in (20, 95)
    for subsampling in ("4:4:4", "4:2:2", "4:2:0")
    for progressive in (False, True)
] + [{"optimize": True}, {"restart_marker_blocks": 2}, {"icc_profile": b"x" * 200_000}, {"comment": b"Exif\0\0"}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_plain_jpeg_has_the_same_pixels_as_with_pillow(options, monkeypatch):
    content = jpeg(**options)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    found, done = decode_image(content, FORM)
    assert np.array_equal(found, expected)
    assert done == []
    if "comment" not in options:
        monkeypatch.setattr(decoding.Image, "open", None)
        assert np.array_equal(decode_image(content, FORM)[0], expected), "without Pillow"


def with_exif():
    exif = Image.Exif()
    exif[decoding.ORIENTATION_TAG] = 3
    return exif


ODD = [
    (jpeg(SMOOTH.convert("L")), ["grey"]),
    (jpeg(SMOOTH.convert("CMYK")), ["CMYK"]),
    (jpeg(exif=with_exif()), ["rotated by EXIF"]),
    (jpeg(exif=with_exif(), icc_profile=b"x" * 60_000), ["rotated by EXIF"]),
]


@pytest.mark.parametrize(("content", "done"), ODD, ids=[str(done) for _, done in ODD])
def test_conversions_of_unusual_jpegs_are_counted(content, done):
    assert decode_image(content, FORM)[1] == done


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_truncated_jpeg_is_never_accepted(share):
    content = jpeg(quality=95)
    with pytest.raises(decoding.BadImageError, match="truncated"):
        decode_image(content[: int(share * len(content))], FORM)


def test_a_large_jpeg_that_is_rotated_keeps_its_details():
    """libjpeg may decode a large one at a part of its size, of which height and width are exchanged before rotation."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 512, 3), np.uint8))
    exif = Image.Exif()
    exif[decoding.ORIENTATION_TAG] = 6
    content = io.BytesIO()
    noise.save(content, "JPEG", quality=95, exif=exif)
    target = ImageFormat(height=8, width=64, is_resized=True)
    pixels, _ = decode_image(content.getvalue(), target)
    upright = ImageOps.exif_transpose(Image.open(content))
    assert np.array_equal(pixels, ImageOps.fit(upright, (64, 8), Image.Resampling.BILINEAR))
