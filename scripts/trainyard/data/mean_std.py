"""Mean and standard deviation of pixels, computed with integers: exact, and independent of how images are sharded."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS: Final = 512  # of images, summed at a time: with their squares they fit into the CPU's cache


def channel_sums(images: NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """For each channel of images (N, H, W, C), the sum of all pixels and the sum of their squares."""
    _, _, width, channels = images.shape
    rows = images.reshape(-1, width * channels)  # a column belongs to one channel
    sums = np.zeros(width * channels, np.uint64)
    squares = np.zeros_like(sums)
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        sums += chunk.sum(axis=0, dtype=np.uint32)
        squares += np.multiply(chunk, chunk, dtype=np.uint16).sum(axis=0, dtype=np.uint32)
    return sums.reshape(-1, channels).sum(axis=0).tolist(), squares.reshape(-1, channels).sum(axis=0).tolist()


def mean_and_std(pixels: int, sums: Sequence[int], squares: Sequence[int]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, from the number of pixels, their sums and the sums of their squares.

    The variance is (n * sum(x^2) - sum(x)^2) / n^2, whose numerator is an exact integer. A standard deviation below 1
    is set to 1: dividing by it would only amplify noise.
    """
    deviations = [math.sqrt(pixels * square - total**2) / pixels for total, square in zip(sums, squares, strict=True)]
    return [total / pixels for total in sums], [max(1.0, deviation) for deviation in deviations]
