"""Audio comes out as mono samples at the rate that was asked for."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import soundfile
from tests.unit.media.pictures import wav

from milepost.errors import InvalidRequest
from milepost.media.audio import decode_audio
from milepost.media.decoded import DecodedMedia
from milepost.media.resampling import resample

WHERE = "messages[0].content[0]"
RATE = 16_000


def tone(rate: int, num_samples: int, hertz: float = 440) -> np.ndarray:
    """Return a sine."""
    times = np.arange(num_samples) / rate
    return np.sin(2 * np.pi * hertz * times).astype(np.float32) / 2


def decode(data: bytes, max_s: int = 10) -> DecodedMedia:
    """Decode a file at the rate of the tests."""
    return decode_audio(data, RATE, max_s, WHERE)


def saved(samples: np.ndarray, rate: int, kind: str) -> bytes:
    """Return samples as a file."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_a_tone_comes_through(kind: str, rate: int) -> None:
    decoded = decode(saved(tone(rate, rate), rate, kind))
    samples = np.frombuffer(decoded.data, dtype=np.float32)
    assert decoded.facts.num_samples == samples.size == RATE
    spectrum = np.abs(np.fft.rfft(samples))
    assert abs(int(spectrum.argmax()) - 440) <= 1
    assert 0.45 < np.abs(samples[2000:-2000]).max() < 0.55


def test_channels_are_mixed() -> None:
    both = np.column_stack([np.full(1000, 0.5), np.full(1000, -0.25)])
    decoded = decode(saved(both, RATE, "FLAC"))
    assert np.frombuffer(decoded.data, dtype=np.float32) == pytest.approx(0.125, abs=1e-4)


@pytest.mark.parametrize("old_rate", [8_000, 11_025, 44_100, 48_000, 44_101])
def test_resampling_keeps_a_tone(old_rate: int) -> None:
    resampled = resample(tone(old_rate, old_rate), old_rate, RATE)
    assert resampled.size == RATE
    assert resampled[100:-100] == pytest.approx(tone(RATE, RATE)[100:-100], abs=1e-3)


def test_resampling_keeps_out_what_the_new_rate_cannot_hold() -> None:
    resampled = resample(tone(48_000, 48_000, hertz=11_000), 48_000, RATE)
    assert np.abs(resampled[100:-100]).max() < 1e-3


def test_audio_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is longer than 1 s; cut it, or start the server"):
        decode(wav(bytes(2 * RATE + 2)), max_s=1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be decoded; send a whole WAV, MP3 or FLAC file"),
        (b"hello", "cannot be decoded"),
        (b"ID3" + bytes(500), "cannot be decoded"),
        (wav(b""), "has no samples"),
        (wav(bytes(100), rate=1), "has 1 samples per second; send 2000 to 384000"),
        (wav(bytes(180), channels=9), "has 9 channels; send at most 8"),
        (saved(tone(RATE, 2000), RATE, "OGG"), "is OGG audio; send WAV, MP3 or FLAC"),
    ],
)
def test_what_is_no_audio_gets_a_sentence(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(data)
    assert str(raised.value).startswith(f"{WHERE} {said}")


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_damaged_bytes_are_audio_or_a_sentence(kind: str) -> None:
    rng = random.Random(kind)
    whole = saved(tone(RATE, 4000), RATE, kind)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            samples = np.frombuffer(decode(bytes(data)).data, dtype=np.float32)
        except InvalidRequest:
            continue
        assert np.isfinite(samples).all()
