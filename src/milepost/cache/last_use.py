"""When something was used: counted in requests, with the time of day beside it for the reader.

The worth of what is stored depends on the count alone. Seconds would make a night without requests
age everything beyond distinction, and a replay at high speed none of it (tried on traces at 60
times their speed: prefilled tokens went from 1.07 to 1.34 of the fewest possible).
"""

from __future__ import annotations

from typing import NamedTuple


class LastUse(NamedTuple):
    """When something was used; later uses are greater."""

    num_requests: int  # seen so far
    seconds: float  # of the caller's clock
