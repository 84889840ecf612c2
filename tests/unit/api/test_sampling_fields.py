from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from tests.fakes.vocab import FakeVocab

from milepost.api.generation_fields import (
    SamplingContext,
    SamplingFields,
    build_sampling_params,
)
from milepost.api.http_body import parse_body
from milepost.errors import InvalidRequest
from milepost.protocol.sampling import RANDOM_SEED, SamplingParams

DEFAULTS = SamplingParams(temperature=0.5, top_k=7, dry_base=2.0)


def build(fields: dict[str, Any], defaults: SamplingParams = DEFAULTS) -> SamplingParams:
    context = SamplingContext(defaults=defaults, vocab=FakeVocab(), num_context_tokens=512)
    body = json.dumps(fields).encode()
    return build_sampling_params(parse_body(SamplingFields, body), context)


def test_fields_that_are_not_given_keep_the_servers_defaults() -> None:
    assert build({}) == DEFAULTS


def test_every_sampling_parameter_can_be_set() -> None:
    given = {
        "samplers": ["top_k", "temperature"],
        "seed": 42,
        "min_keep": 2,
        "temperature": 0.9,
        "dynatemp_range": 0.2,
        "dynatemp_exponent": 1.5,
        "top_k": 11,
        "top_p": 0.8,
        "min_p": 0.02,
        "typical_p": 0.7,
        "top_n_sigma": 1.25,
        "xtc_probability": 0.25,
        "xtc_threshold": 0.2,
        "repeat_last_n": 32,
        "repeat_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.4,
        "dry_multiplier": 0.6,
        "dry_base": 1.5,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 100,
        "dry_sequence_breakers": ["\n"],
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "adaptive_target": 0.5,
        "adaptive_decay": 0.8,
        "logit_bias": [[5, 1.5]],
        "ignore_eos": True,
        "grammar": 'root ::= "a"',
    }

    params = build(given)

    assert set(given) == set(SamplingParams.__struct_fields__)
    assert msgspec.to_builtins(params) == msgspec.to_builtins(
        msgspec.convert(given, SamplingParams, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", -1, 0.0),
        ("top_k", -5, 0),
        ("top_p", 1.5, 1.0),
        ("min_p", -0.1, 0.0),
        ("xtc_probability", 2, 1.0),
        ("xtc_threshold", -1, 0.0),
        ("mirostat", 3, 2),
        ("adaptive_target", 7, 1.0),
        ("repeat_penalty", 1e300, 3.4028234663852886e38),
    ],
)
def test_soft_bounds_clamp(name: str, value: float, expected: float) -> None:
    assert getattr(build({name: value}), name) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repeat_last_n", -2),
        ("dry_penalty_last_n", -2),
        ("dry_allowed_length", -1),
        ("min_keep", -1),
        ("adaptive_decay", 1.0),
        ("repeat_last_n", 2**31),
    ],
)
def test_hard_bounds_refuse_and_name_the_range(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' must be between .* but is {value}") as e:
        build({name: value})
    assert e.value.param == name


def test_windows_are_kept_within_the_context_because_they_are_allocated() -> None:
    params = build(
        dict.fromkeys(("repeat_last_n", "dry_penalty_last_n", "min_keep"), 2_000_000_000)
    )

    assert (params.repeat_last_n, params.dry_penalty_last_n, params.min_keep) == (512, 512, 263)


@pytest.mark.parametrize(("seed", "expected"), [(-1, RANDOM_SEED), (7, 7), (2**32 + 7, 7), (0, 0)])
def test_a_seed_wraps_and_minus_one_is_random(seed: int, expected: int) -> None:
    assert build({"seed": seed}).seed == expected


def test_a_dry_base_below_one_leaves_the_default() -> None:
    assert build({"dry_base": 0.5}).dry_base == 2.0


def test_an_empty_logit_bias_overrides_the_servers() -> None:
    defaults = SamplingParams(logit_bias=((3, -math.inf),))

    assert build({}, defaults).logit_bias == ((3, -math.inf),)
    assert build({"logit_bias": []}, defaults).logit_bias == ()
