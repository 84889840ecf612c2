"""The choice of a restore source."""

from __future__ import annotations

from milepost.cache.restore import RestoreRates, RestoreSource, choose_restore

# 1,000 tokens take a second, a gigabyte from RAM too, and five from disk.
RATES = RestoreRates(
    prefill_tokens_per_s=1000.0,
    ram_bytes_per_s=1e9,
    disk_bytes_per_s=2e8,
    load_s=0.001,
)
LIVE = RestoreSource("kv_cache", 4000, index=2)


def test_nothing_held_means_everything_is_computed() -> None:
    choice = choose_restore([], RATES, 5000)
    assert choice.source.kind == "zero"
    assert choice.estimated_s == 5.0


def test_a_live_sequence_beats_a_stored_state_of_the_same_depth() -> None:
    stored = RestoreSource("ram", 4000, num_bytes=10**6)
    choice = choose_restore([stored, LIVE], RATES, 5000)
    assert choice.source is LIVE
    assert choice.refused == ()


def test_a_deeper_stored_state_beats_a_live_sequence() -> None:
    stored = RestoreSource("ram", 4900, num_bytes=10**8)
    choice = choose_restore([LIVE, stored], RATES, 5000)
    assert choice.source is stored
    assert round(choice.estimated_s, 6) == 0.001 + 0.1 + 0.1


def test_a_state_that_loads_slower_than_it_computes_is_refused() -> None:
    stored = RestoreSource("ram", 4900, num_bytes=10**9)
    choice = choose_restore([stored, LIVE], RATES, 5000)
    assert choice.source is LIVE
    assert choice.refused == (stored,)


def test_the_disk_is_slower_than_ram() -> None:
    on_disk = RestoreSource("disk", 4500, num_bytes=2 * 10**8)
    in_ram = RestoreSource("ram", 4400, num_bytes=2 * 10**8)
    assert choose_restore([on_disk, in_ram], RATES, 5000).source is in_ram


def test_what_has_to_leave_a_slot_is_counted() -> None:
    crowded = RestoreSource("kv_cache", 4000, extra_s=3.0)
    shallow = RestoreSource("parked", 2000)
    assert choose_restore([crowded, shallow], RATES, 5000).source is shallow


def test_the_deepest_source_is_taken_while_no_rate_is_known() -> None:
    unknown = RestoreRates(prefill_tokens_per_s=0.0, ram_bytes_per_s=0.0)
    stored = RestoreSource("ram", 4500, num_bytes=10**9)
    assert choose_restore([LIVE, stored], unknown, 5000).source is stored
