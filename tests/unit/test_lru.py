"""The bounded mapping that everything remembered is in."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost.lru import LruCache


def by_length(max_size: int, max_items: int | None = None) -> LruCache[str, str]:
    """Return a cache that counts characters."""
    return LruCache(max_items, max_size=max_size, size_of=lambda _, value: len(value))


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    assert cache.put("c", 3) == [("b", 2)]
    assert cache.get("b") is None
    assert cache.values() == [1, 3]


def test_looking_is_no_use() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    assert "a" in cache
    assert cache.values() == [1, 2]
    assert cache.put("c", 3) == [("a", 1)]
    with pytest.raises(KeyError):
        cache.peek("a")


def test_sizes_are_bounded_together() -> None:
    cache = by_length(10)
    cache.put("a", "xxxx")
    cache.put("b", "xxxx")
    assert cache.size == 8
    assert cache.put("c", "xxxxxxx") == [("a", "xxxx"), ("b", "xxxx")]
    assert (len(cache), cache.size) == (1, 7)


def test_both_bounds_hold() -> None:
    cache = by_length(10, max_items=2)
    for key in "abc":
        cache.put(key, "x")
    assert cache.values() == ["x", "x"]
    assert cache.put("d", "x" * 9) == [("b", "x")]


def test_what_is_too_large_by_itself_costs_nothing_else_its_place() -> None:
    cache = by_length(3)
    cache.put("a", "xx")
    assert cache.put("b", "xxxx") == [("b", "xxxx")]
    assert cache.values() == ["xx"]
    assert by_length(0).put("a", "x") == [("a", "x")]


def test_a_value_that_is_replaced_counts_once() -> None:
    cache = by_length(10)
    cache.put("a", "xxxx")
    assert cache.put("a", "xxxxxxxx") == []
    assert cache.size == 8
    assert cache.pop("a") == "xxxxxxxx"
    assert cache.pop("a") is None
    assert cache.size == 0


def test_clearing_takes_everything_out() -> None:
    cache = by_length(10)
    cache.put("a", "xx")
    cache.clear()
    assert (len(cache), cache.size, cache.values()) == (0, 0, [])


def test_threads_may_share_one() -> None:
    cache = by_length(200, max_items=30)

    def put(key: str) -> None:
        cache.put(key, key * 9)

    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(3000):
            key = str(rng.randrange(50))
            rng.choice([cache.get, cache.pop, put])(key)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert cache.size == sum(map(len, cache.values())) <= 200
    assert len(cache) <= 30
