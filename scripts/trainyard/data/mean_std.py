"""Mean and standard deviation of pixels, from whole numbers: the same however the images are shared out."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

SUMMED_PIXELS: Final = 256  # side by side: their sums are worked out all at once
SUMMED_LINES: Final = 512  # one below another: with their squares they stay in the processor's cache


def channel_sums(images: NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """Per channel of images (N, H, W, C) the sum of all pixels and that of their squares.

    Whole numbers, so that they are the same in any order of adding.
    """
    values, channels = images.reshape(-1), images.shape[-1]
    width = SUMMED_PIXELS * channels
    whole = len(values) // width * width
    rest = np.zeros(width, np.uint64)
    rest[: len(values) - whole] = values[whole:]
    sums, squares = rest, rest**2
    lines = values[:whole].reshape(-1, width)  # a channel has the same columns in each
    for start in range(0, len(lines), SUMMED_LINES):
        part = lines[start : start + SUMMED_LINES]
        squares = squares + np.add.reduce(np.multiply(part, part, dtype=np.uint16), axis=0, dtype=np.uint32)
        sums = sums + np.add.reduce(part, axis=0, dtype=np.uint32)
    totals = [array.reshape(-1, channels).sum(axis=0).tolist() for array in (sums, squares)]
    return totals[0], totals[1]


def moments(pixels: int, sums: Sequence[int], squares: Sequence[int]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of so many pixels, from their sums and those of their squares.

    n * sum(x^2) - sum(x)^2 is exact. A deviation below 1 would only enlarge noise.
    """
    deviations = [math.sqrt(pixels * square - total**2) / pixels for total, square in zip(sums, squares, strict=True)]
    return [total / pixels for total in sums], [max(1.0, deviation) for deviation in deviations]
