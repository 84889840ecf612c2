"""Changes the rate of audio: a low-pass filter, evaluated where the new samples are.

new sample n stands at n * old_rate / new_rate among the old ones, and is the sum of those
around it, weighted with a windowed sinc whose cut-off is the lower of both Nyquist rates
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

NUM_ZEROS = 16  # of the sinc on each side; arbitrary: a stop band below -70 dB
KAISER_BETA = 7.0
MAX_PHASES = 1024  # places between two old samples that are told apart; arbitrary
BLOCK_VALUES = 1 << 20  # products at once; arbitrary: some megabytes


def resample(samples: Samples, old_rate: int, new_rate: int) -> Samples:
    """Return the samples at another rate."""
    if old_rate == new_rate or samples.size == 0:
        return samples
    common = math.gcd(old_rate, new_rate)
    step, per = old_rate // common, new_rate // common  # new sample n is at n * step / per
    weights = _make_weights(min(per, MAX_PHASES), min(1.0, new_rate / old_rate))
    num_phases, num_taps = weights.shape
    reach = num_taps // 2
    padded = np.pad(samples, (reach, reach + 1))
    num_new = math.ceil(samples.size * per / step)
    resampled = np.empty(num_new, dtype=np.float32)
    block = max(BLOCK_VALUES // num_taps, 1)
    for start in range(0, num_new, block):
        numbers = np.arange(start, min(start + block, num_new), dtype=np.int64)
        whole, rest = np.divmod(numbers * step, per)
        around = padded[whole[:, None] + np.arange(1, num_taps + 1)]
        phases = weights[rest * num_phases // per]
        resampled[start : start + numbers.size] = np.einsum("ij,ij->i", around, phases)
    return resampled


def _make_weights(num_phases: int, scale: float) -> Samples:
    """Return the weights of the old samples around a new one, a row for each phase.

    `scale` is the cut-off, relative to that of the old rate. Column j of phase p stands at
    j + 1 - reach - p / num_phases.
    """
    reach = math.ceil(NUM_ZEROS / scale)
    phases = np.arange(num_phases)[:, None] / num_phases
    distances = np.arange(1 - reach, reach + 1) - phases
    inside = np.sqrt(np.clip(1.0 - np.square(distances / reach), 0.0, 1.0))
    window = np.i0(KAISER_BETA * inside) / np.i0(KAISER_BETA)
    weights = scale * np.sinc(distances * scale) * window
    return weights.astype(np.float32)
