"""Decoding an image file of any mode, size and orientation to an array of pixels."""

import io
import struct
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp", ".gif")
# The formats to recognize, whatever the extension. Without a list, Pillow also opens PostScript: it runs Ghostscript.
FORMATS: Final = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF", "AVIF", "JPEG2000")
ORIENTATION_TAG: Final = 0x0112  # in EXIF
TRANSPOSED: Final = 5  # the first of the orientations, 1 to 8, in which height and width are exchanged
# What Pillow raises for a damaged file, depending on the format: a RuntimeError for AVIF.
DECODING_ERRORS: Final = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, RuntimeError,
                          struct.error)  # fmt: skip
JPEG_MAGIC: Final = b"\xff\xd8\xff"
EXIF_BYTES: Final = 2**17  # EXIF is one of the first segments of a JPEG, each of at most 64 KiB
MODES: Final = {
    "L": "grey",
    "1": "grey",
    "P": "palette",
    "PA": "palette",
    "RGBA": "transparent",
    "LA": "transparent",
    "CMYK": "CMYK",
    "I;16": "16 bits",
    "I;16B": "16 bits",
    "I;16L": "16 bits",
    "I": "16 bits",
}

# Pillow refuses images of more than 179 million pixels; its warning from half of that on is not needed.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class BadImageError(Exception):
    """The file cannot be used as an image."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(problem, detail)
        self.problem = problem
        self.detail = detail


@dataclass(frozen=True)
class ImageFormat:
    """The size that every image is converted to."""

    height: int
    width: int
    is_resized: bool  # otherwise, images of another size are refused

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (H, W, C) of one image."""
        return self.height, self.width, 3


def decode_image(content: bytes, target: ImageFormat) -> tuple[NDArray[np.uint8], list[str]]:
    """The pixels, uint8 of shape (H, W, 3), and the names of the conversions that were necessary.

    Colors are converted by Pillow's `convert("RGB")`, as in torchvision's ImageFolder.

    Raises:
        BadImageError: the file is damaged, is not an image, or cannot be converted.
    """
    if not content:
        raise BadImageError("empty file")
    pixels = _decode_plain_jpeg(content, target)
    if pixels is not None:
        return pixels, []
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        if target.is_resized and image.format == "JPEG":  # decodes a large one at 1/2, 1/4 or 1/8 of its size
            size = (2 * target.width, 2 * target.height)
            image.draft(None, size if _orientation(image) < TRANSPOSED else size[::-1])
        image.load()
        return _convert(image, target)
    except BadImageError:
        raise
    except UnidentifiedImageError:
        raise BadImageError("not an image", f"begins with {content[:12]!r}") from None
    except Image.DecompressionBombError as error:
        raise BadImageError("too many pixels", str(error)) from None
    except (*DECODING_ERRORS, MemoryError) as error:
        raise BadImageError("truncated" if "truncated" in str(error).lower() else "damaged", str(error)) from None


def _decode_plain_jpeg(content: bytes, target: ImageFormat) -> NDArray[np.uint8] | None:
    """The pixels of an undamaged JPEG that needs no conversion; None for any other file, which is left to Pillow.

    simplejpeg uses libjpeg-turbo, as Pillow does: the same pixels, for small images five times as fast.
    """
    if content[:3] != JPEG_MAGIC or b"Exif\0" in content[:EXIF_BYTES]:
        return None
    try:
        height, width, color_space, _ = simplejpeg.decode_jpeg_header(content)
        if (height, width) != (target.height, target.width) or color_space != "YCbCr":
            return None
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(content)
    except ValueError:
        return None
    return pixels


def _convert(image: Any, target: ImageFormat) -> tuple[NDArray[np.uint8], list[str]]:
    converted: Any = image
    conversions = []
    if _orientation(image) > 1:
        converted = ImageOps.exif_transpose(image)
        conversions.append("rotated by EXIF")
    if image.format in ("GIF", "WEBP", "TIFF") and getattr(image, "is_animated", False):
        conversions.append("first frame")
    if converted.mode != "RGB":
        if converted.mode in MODES:
            conversions.append(MODES[converted.mode])
        converted = _to_rgb(converted)
    width, height = converted.size
    if (width, height) != (target.width, target.height):
        if not target.is_resized:
            raise BadImageError("other size", f"{height}x{width} pixels, others are {target.height}x{target.width}")
        converted = ImageOps.fit(converted, (target.width, target.height), Image.Resampling.BILINEAR)
        conversions.append("resized")
    return np.asarray(converted), conversions


def _orientation(image: Any) -> int:
    """The orientation in EXIF, 1 to 8; 1 means upright, also where EXIF is damaged: the pixels may be intact."""
    try:
        orientation: Any = image.getexif().get(ORIENTATION_TAG) if "exif" in image.info else None
    except DECODING_ERRORS:
        return 1
    return int(orientation) if orientation in range(1, 9) else 1


def _to_rgb(image: Any) -> Any:
    if image.mode == "F":
        raise BadImageError("floating-point pixels")
    if image.mode.startswith("I"):  # 16 bits: keep the upper eight
        values = np.asarray(image)
        if values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise BadImageError("32-bit pixels")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    return image.convert("RGB")


def read_size(content: bytes) -> tuple[int, int] | None:
    """Height and width in pixels after rotation by EXIF, from the file's header; None if it cannot be read."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = image.size
        is_transposed = _orientation(image) >= TRANSPOSED
    except (*DECODING_ERRORS, Image.DecompressionBombError):
        return None
    return (width, height) if is_transposed else (height, width)
