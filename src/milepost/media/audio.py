"""Decodes audio files into mono samples at the rate that the projector wants.

The files are untrusted. Lengths in headers are not believed: samples are read in blocks, up to the
limit. `soundfile`, with its native library, is loaded with the first audio.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from milepost.errors import InvalidRequest, NotSupported
from milepost.media.decoded import DecodedMedia, name_audio
from milepost.media.resampling import resample

FORMATS = ("WAV", "WAVEX", "FLAC", "MP3")
MIN_RATE, MAX_RATE = 2_000, 384_000  # samples per second; arbitrary, beyond what recorders write
MAX_CHANNELS = 8  # arbitrary
BLOCK_FRAMES = 1 << 16


def decode_audio(data: bytes, rate: int, max_s: int, where: str) -> DecodedMedia:
    """Return the mean of an audio file's channels at `rate` samples per second.

    Raises InvalidRequest, which begins with `where`, for anything that is no such file, and
    NotSupported where there is no library that decodes audio.
    """
    soundfile = _load_library(where)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_format(file, where)
            samples = _read_mono(file, max_s, where)
            return name_audio(resample(samples, file.samplerate, rate).tobytes(), rate)
    except InvalidRequest:
        raise
    # An edge to foreign code: parsers of files raise whatever Python can.
    except Exception as error:
        raise InvalidRequest(
            f"{where} cannot be decoded; send a whole WAV, MP3 or FLAC file", param="messages"
        ) from error


def _load_library(where: str) -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # the latter: no native library for this machine
        raise NotSupported(
            f"{where} is audio, and this server has no library that decodes it: soundfile cannot "
            f"be loaded ({str(error)[:100]})",
            param="messages",
        ) from error
    return soundfile


def _check_format(file: Any, where: str) -> None:
    if file.format not in FORMATS:
        raise InvalidRequest(
            f"{where} is {file.format} audio; send WAV, MP3 or FLAC", param="messages"
        )
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise InvalidRequest(
            f"{where} has {file.samplerate} samples per second; send {MIN_RATE} to {MAX_RATE}",
            param="messages",
        )
    if file.channels > MAX_CHANNELS:
        raise InvalidRequest(
            f"{where} has {file.channels} channels; send at most {MAX_CHANNELS}", param="messages"
        )


def _read_mono(file: Any, max_s: int, where: str) -> npt.NDArray[np.float32]:
    blocks: list[npt.NDArray[np.float32]] = []
    num_frames = 0
    while True:
        block = file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)
        if len(block) == 0:
            break
        num_frames += len(block)
        if num_frames > max_s * file.samplerate:
            raise InvalidRequest(
                f"{where} is longer than {max_s} s; cut it, or start the server with a larger "
                "--media-max-audio",
                param="messages",
            )
        blocks.append(np.nan_to_num(block.mean(axis=1, dtype=np.float32)))
    if not blocks:
        raise InvalidRequest(f"{where} has no samples; leave it out", param="messages")
    return np.concatenate(blocks)
