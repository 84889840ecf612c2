"""Counts and rates of a running engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.protocol.counters import Counters

SMOOTHING = 0.3  # weight of the newest batch in a rate; arbitrary
MIN_RATE_TOKENS = 32  # smaller prefills say little about the rate
MIN_RATE_BYTES = 1 << 20  # smaller restores say little about the bandwidth
# Until measured, both arbitrary: a middling machine. Wrong by a factor of ten they still prefer
# a restore to computing a few hundred tokens.
ASSUMED_PREFILL_TOKENS_PER_S = 500.0
ASSUMED_RESTORE_BYTES_PER_S = 2e9
ASSUMED_DECODE_TOKENS = 100.0


@dataclass(slots=True)
class Statistics:
    """The totals that all parts of the engine add to, and the measured rates."""

    counters: Counters = field(default_factory=Counters)
    prefill_tokens_per_s: float = 0.0  # 0 while unknown
    restore_bytes_per_s: float = ASSUMED_RESTORE_BYTES_PER_S
    decode_tokens_per_sequence: float = ASSUMED_DECODE_TOKENS

    @property
    def estimated_prefill_tokens_per_s(self) -> float:
        """The measured prefill rate, or the assumed one."""
        return self.prefill_tokens_per_s or ASSUMED_PREFILL_TOKENS_PER_S

    def note_sequence(self, num_decoded: int) -> None:
        """Count a finished sequence."""
        self.counters.num_decoded_tokens += num_decoded
        self.decode_tokens_per_sequence += SMOOTHING * (
            num_decoded - self.decode_tokens_per_sequence
        )

    def note_restore(self, num_bytes: int, elapsed_s: float) -> None:
        """Count one restore."""
        if num_bytes >= MIN_RATE_BYTES and elapsed_s > 0:
            rate = num_bytes / elapsed_s
            self.restore_bytes_per_s += SMOOTHING * (rate - self.restore_bytes_per_s)

    def note_batch(self, num_prefill: int, num_decode: int, elapsed_s: float) -> None:
        """Count one batch; its time goes to whichever kind of token it mostly held."""
        self.counters.num_decode_calls += 1
        self.counters.num_prefilled_tokens += num_prefill
        if num_prefill > num_decode:
            self.counters.prefill_s += elapsed_s
        else:
            self.counters.decode_s += elapsed_s
        if num_prefill >= MIN_RATE_TOKENS and elapsed_s > 0:
            rate = num_prefill / elapsed_s
            old = self.prefill_tokens_per_s or rate
            self.prefill_tokens_per_s = old + SMOOTHING * (rate - old)
