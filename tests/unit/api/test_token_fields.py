from __future__ import annotations

import math
from typing import Any

import pytest
from tests.fakes.vocab import FakeVocab

from milepost.api.generation_fields import parse_stop
from milepost.api.token_fields import (
    parse_logit_bias,
    parse_samplers,
    parse_sequence_breakers,
)
from milepost.errors import InvalidRequest


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"104": 1.5, "105": -100}, ((104, 1.5), (105, -100.0))),
        ([[104, 1], [105, False]], ((104, 1.0), (105, -math.inf))),
        ([["hi", -0.5]], ((104, -0.5), (105, -0.5))),
        ({"hi": False}, ((104, -math.inf), (105, -math.inf))),
        ([], ()),
        ({}, ()),
        ([[104, 10**400]], ((104, 3.4028234663852886e38),)),
    ],
)
def test_all_forms_of_logit_bias(value: Any, expected: tuple[tuple[int, float], ...]) -> None:
    assert parse_logit_bias(value, FakeVocab()) == expected


@pytest.mark.parametrize(
    "value",
    [
        "x",
        [104, 1.0],
        [[104]],
        {"999": 1},
        {"-1": 1},
        [[104, True]],
        [[104, "1"]],
        [[104, math.nan]],
        [[1.5, 1]],
        [[True, 1]],
    ],
)
def test_a_wrong_logit_bias_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="'logit_bias' must") as caught:
        parse_logit_bias(value, FakeVocab())
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["top_k", "top-p", "TOPK", "temp"], ("top_k", "top_p", "top_k", "temperature")),
        (["typical_p", "nucleus"], ("typ_p", "top_p")),
        ("kpt", ("top_k", "top_p", "temperature")),
        ([], ()),
        ("", ()),
    ],
)
def test_samplers_by_name_and_by_letter(value: Any, expected: tuple[str, ...]) -> None:
    assert parse_samplers(value) == expected


@pytest.mark.parametrize(
    ("value", "named"), [(["foo"], '"foo"'), ("kq", '"q"'), (5, "5"), ([1], "[1]")]
)
def test_an_unknown_sampler_is_named(value: Any, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_samplers(value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, ()), ("a", ("a",)), ("", ()), (["b", "", "a", "b"], ("b", "a"))],
)
def test_stop_drops_empty_and_repeated_strings(value: Any, expected: tuple[str, ...]) -> None:
    assert parse_stop(value) == expected


@pytest.mark.parametrize("value", [5, [1], {"a": 1}])
def test_a_wrong_stop_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="'stop' must be a string or a list of strings"):
        parse_stop(value)


@pytest.mark.parametrize("value", [[], "x", [1]])
def test_sequence_breakers_must_be_a_list_with_strings(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="at least one string"):
        parse_sequence_breakers(value)
