"""One image file as pixels, whatever mode, size and orientation it has."""

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
ORIENTATION: Final = 0x0112  # the EXIF tag
# What Pillow raises at a damaged file, one format this and another that.
DAMAGE: Final = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error)
JPEG: Final = b"\xff\xd8\xff"
EXIF_BYTES: Final = 2**17  # within which EXIF begins: it is one of the first segments, each of 64 KiB at most
MODES: Final = {"L": "grey", "1": "grey", "P": "palette", "PA": "palette", "RGBA": "transparent", "LA": "transparent",
                "CMYK": "CMYK", "I;16": "16 bits", "I;16B": "16 bits", "I;16L": "16 bits", "I": "16 bits"}  # fmt: skip

# Pillow refuses images of more than 179 million pixels, and would warn from half of that.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class BadImage(Exception):
    """The file cannot be used."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(problem, detail)
        self.problem, self.detail = problem, detail


@dataclass(frozen=True)
class Form:
    """What every image is brought to."""

    height: int
    width: int
    channels: int  # 3: RGB; 1: grey
    fit: str | None  # crop, stretch or pad; None: an image of another size is not taken

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: (H, W, C)."""
        return self.height, self.width, self.channels


def decode(content: bytes, form: Form) -> tuple[NDArray[np.uint8], list[str]]:
    """The pixels, uint8 of shape (H, W) or (H, W, C), and what had to be done for them.

    Colours are Pillow's `convert("RGB")`, which is what torchvision's ImageFolder gives.

    Raises:
        BadImage: it is not one, or not a whole one.
    """
    if not content:
        raise BadImage("empty file")
    plain = _plain_jpeg(content, form)
    if plain is not None:
        return plain, []
    try:
        image = Image.open(io.BytesIO(content))
        if form.fit and image.format == "JPEG":  # decode a large one at half, a quarter or an eighth of its size
            image.draft(None, (2 * form.width, 2 * form.height))
        image.load()
        return _formed(image, form)
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("not an image", f"begins with {content[:12]!r}") from None
    except Image.DecompressionBombError as error:
        raise BadImage("too many pixels", str(error)) from None
    except (*DAMAGE, MemoryError) as error:
        raise BadImage("truncated" if "truncated" in str(error).lower() else "damaged", str(error)) from None


def _plain_jpeg(content: bytes, form: Form) -> NDArray[np.uint8] | None:
    """What needs nothing but decoding, by libjpeg-turbo itself, which is also within Pillow: the same pixels.

    Of anything else, and of what is damaged, None: Pillow has the say.
    """
    if content[:3] != JPEG or form.channels != 3 or b"Exif\0" in content[:EXIF_BYTES]:
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        if (height, width) != (form.height, form.width) or colours != "YCbCr":
            return None
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(content)
    except ValueError:
        return None
    return pixels


def _formed(image: Any, form: Form) -> tuple[NDArray[np.uint8], list[str]]:
    done = []
    if _orientation(image) not in (0, 1):
        image = ImageOps.exif_transpose(image)
        done.append("rotated by EXIF")
    if image.format in ("GIF", "WEBP", "TIFF") and getattr(image, "is_animated", False):
        done.append("first frame")
    wanted = "RGB" if form.channels == 3 else "L"
    if image.mode != wanted:
        if image.mode in MODES:
            done.append(MODES[image.mode])
        image = _converted(image, wanted)
    if image.size != (form.width, form.height):
        image = _fitted(image, form)
        done.append("resized")
    return np.asarray(image), done


def _orientation(image: Any) -> int:
    """How EXIF says to turn the image: 1 to 8, and 1 is not at all."""
    return int(image.getexif().get(ORIENTATION, 1)) if "exif" in image.info else 1


def _converted(image: Any, wanted: str) -> Any:
    if image.mode == "F":
        raise BadImage("floating-point pixels")
    if image.mode.startswith("I"):  # 16 bits: the upper eight
        values = np.asarray(image)
        if values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise BadImage("32-bit pixels")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    return image.convert(wanted)


def _fitted(image: Any, form: Form) -> Any:
    size = (form.width, form.height)
    if form.fit is None:
        width, height = image.size
        raise BadImage("other size", f"{height}x{width} pixels, others are {form.height}x{form.width}")
    if form.fit == "stretch":
        return image.resize(size, Image.Resampling.BILINEAR)
    return {"crop": ImageOps.fit, "pad": ImageOps.pad}[form.fit](image, size, Image.Resampling.BILINEAR)


def size_of(content: bytes) -> tuple[int, int] | None:
    """Height and width in pixels, as it is to be seen, from the file's head; None if it cannot be told."""
    try:
        image = Image.open(io.BytesIO(content))
        width, height = image.size
        turned = _orientation(image) in (5, 6, 7, 8)
    except (*DAMAGE, Image.DecompressionBombError):
        return None
    return (width, height) if turned else (height, width)
