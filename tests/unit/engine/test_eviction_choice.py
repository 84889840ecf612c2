"""Users get milepost's own eviction policy; a benchmark may name another one."""

from __future__ import annotations

import pytest

from milepost.cache.eviction_policies import LeastRecentlyUsed, WorthPerByte
from milepost.engine.main import EVICTION_POLICY, choose_eviction_policy
from milepost.errors import ConfigurationError


def test_policies_by_name() -> None:
    assert choose_eviction_policy({}) is WorthPerByte
    assert choose_eviction_policy({EVICTION_POLICY: "lru"}) is LeastRecentlyUsed
    with pytest.raises(ConfigurationError, match="it can be worth, lru"):
        choose_eviction_policy({EVICTION_POLICY: "fifo"})
