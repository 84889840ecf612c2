"""Whether an idle conversation is evicted from the KV cache. Pure.

Cells of others slow every decode step down, because attention reads all cells in use. To evict an
idle conversation costs nothing, for it is kept in RAM as it grows; bringing it back costs a copy.
So it is evicted when the steps to come are slowed down by more than that copy takes:

    slow-down = tokens to be decoded x bytes of its cells / reading rate
    copy      = bytes of its cells / restore rate + a fixed cost

Conversations that take turns with short answers stay, and are not copied back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass

# Rate at which attention goes over the cells of others. Measured: SmolLM2 with 4,096 foreign cells
# (92 MB) took 6.3 ms more a step on 2 cores.
READ_BYTES_PER_S = 15e9
RESTORE_S = 0.002  # fixed cost of a restore; measured with small states


@dataclass(frozen=True, slots=True)
class ResidencyRates:
    """What the decision goes by; measured while the engine runs."""

    bytes_per_token: float  # of attention cells; 0: they cost nothing
    expected_decode_tokens: float  # of the requests now running
    restore_bytes_per_s: float


def should_evict(num_foreign_tokens: int, rates: ResidencyRates) -> bool:
    """Return whether an idle conversation should make way for the ones that run.

    `num_foreign_tokens` are those of its cells that no running sequence shares.
    """
    num_bytes = num_foreign_tokens * rates.bytes_per_token
    slow_down_s = rates.expected_decode_tokens * num_bytes / READ_BYTES_PER_S
    return slow_down_s > RESTORE_S + num_bytes / rates.restore_bytes_per_s
