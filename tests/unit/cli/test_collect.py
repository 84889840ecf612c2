"""Settings from command line, environment and defaults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from milepost.cli.collect import (
    BadValue,
    all_entries,
    collect_settings,
    unknown_variables,
)
from milepost.config import EngineSettings, Settings
from milepost.protocol.sampling import DEFAULT_SAMPLERS, SAMPLER_LETTERS, SamplingParams


def collect(environment: dict[str, str] | None = None, **given: Any) -> Settings:
    settings, _ = collect_settings(given, environment or {})
    return settings


def test_nothing_given_gives_the_defaults() -> None:
    assert collect() == Settings()


def test_command_line_beats_environment_beats_default() -> None:
    environment = {"LLAMA_ARG_TOP_K": "9", "LLAMA_ARG_CTX_SIZE": "4096"}

    settings = collect(environment, top_k="7")

    assert settings.sampling.top_k == 7
    assert settings.engine.ctx_size == 4096
    assert settings.engine.batch_size == 2048


def test_no_flag_and_no_variable_is_given_to_two_settings() -> None:
    entries = list(all_entries())
    names = [
        name for entry in entries for name in f"{entry.flag.names} {entry.flag.negated}".split()
    ]
    variables = [entry.flag.env for entry in entries if entry.flag.env]

    assert len(names) == len(set(names))
    assert len(variables) == len(set(variables))
    assert len({entry.key for entry in entries}) == len(entries)


def test_every_default_passes_through_its_own_parser() -> None:
    for entry in all_entries():
        if isinstance(entry.default, int | float) and not entry.flag.kind:
            given: dict[str, Any] = {entry.key: str(entry.default).lower()}
            if entry.is_switch:
                given = {entry.key: entry.default}
            collect_settings(given, {})


@pytest.mark.parametrize("word", ["1", "true", "on", "enabled"])
def test_true_words_in_the_environment(word: str) -> None:
    assert collect({"LLAMA_ARG_ENDPOINT_METRICS": word}).server.metrics is True


@pytest.mark.parametrize("word", ["0", "false", "off", "disabled"])
def test_false_words_in_the_environment(word: str) -> None:
    assert collect({"LLAMA_ARG_JINJA": word}).chat.jinja is False


def test_a_negated_variable_switches_off_whatever_its_value() -> None:
    assert collect({"LLAMA_ARG_NO_KV_OFFLOAD": "0"}).engine.kv_offload is False
    assert collect({"LLAMA_ARG_NO_KV_OFFLOAD": ""}, kv_offload=True).engine.kv_offload is True


def test_an_empty_variable_counts_as_not_set() -> None:
    assert collect({"LLAMA_ARG_PORT": ""}).server.port == 8080


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"port": "99999"}, "--port 99999 must be a whole number from 0 to 65535"),
        ({"port": "http"}, "--port http must be a whole number from 0 to 65535"),
        ({"ctx_size": "-5"}, "--ctx-size -5 must be a whole number from 0 to 16777216"),
        ({"top_p": "1.5"}, "--top-p 1.5 must be a number from 0 to 1"),
        ({"top_p": "nan"}, "--top-p nan must be a finite number from 0 to 1"),
        ({"repeat_penalty": "0"}, "--repeat-penalty 0 must be a number above 0"),
        ({"parallel": "0"}, "--parallel 0 must be a whole number from 1 to 256, or -1 for 4"),
        ({"host": "::1,0.0.0.0"}, "--host ::1,0.0.0.0 must be one address"),
        ({"split_mode": "half"}, "--split-mode half must be one of none, layer, row, tensor"),
        ({"flash_attn": "maybe"}, "--flash-attn maybe must be one of on, off, auto"),
        (
            {"n_gpu_layers": "some"},
            "--n-gpu-layers some must be a whole number at least 0, auto or all",
        ),
        (
            {"logit_bias": ("15043",)},
            "--logit-bias 15043 must be a token number, a sign and a bias, as in 15043+1",
        ),
        (
            {"chat_template_kwargs": "[1]"},
            "--chat-template-kwargs [1] must be a JSON object, for example "
            '{"enable_thinking": false}',
        ),
        ({"grammar_file": "missing.gbnf"}, "cannot be read: No such file or directory"),
        ({"samplers": "top_k;top_z"}, "has the unknown sampler 'top_z'"),
        ({"sampling_seq": "kz"}, "--sampling-seq kz has the unknown letter 'z'"),
    ],
)
def test_a_bad_value_is_named_with_its_flag_and_bounds(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadValue) as caught:
        collect(**given)
    assert sentence in str(caught.value)


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(BadValue, match="LLAMA_ARG_PORT=x must be a whole number from 0 to 65535"):
        collect({"LLAMA_ARG_PORT": "x"})


def test_variables_that_only_llama_server_knows_are_found() -> None:
    environment = {"LLAMA_ARG_LORA": "x", "LLAMA_ARG_PORT": "1", "LLAMA_ARG_NO_JINJA": ""}

    assert unknown_variables(environment) == ["LLAMA_ARG_LORA"]


def test_words_for_numbers() -> None:
    settings = collect(parallel="-1", n_gpu_layers="all", seed="-1", flash_attn="1")

    assert settings.engine.parallel == 4
    assert settings.engine.n_gpu_layers == -2
    assert settings.sampling.seed == 0xFFFFFFFF
    assert settings.engine.flash_attn == "on"


def test_lists_add_up_over_commas_and_repetition() -> None:
    settings = collect(
        {"LLAMA_API_KEY": "unused"},
        api_key=("one, two", "three"),
        alias=("small,",),
        logit_bias=("15043+1.5", "2-inf"),
        tensor_split="3,1",
    )

    assert settings.server.api_keys == ("one", "two", "three")
    assert settings.server.alias == ("small",)
    assert settings.sampling.logit_bias == ((15043, 1.5), (2, float("-inf")))
    assert settings.engine.tensor_split == (3.0, 1.0)


def test_dry_breakers_replace_the_defaults_and_none_clears() -> None:
    assert collect(dry_sequence_breaker=(r"\n", "|")).sampling.dry_sequence_breakers == ("\n", "|")
    assert collect(dry_sequence_breaker=("a", "none")).sampling.dry_sequence_breakers == ()


def test_samplers_by_name_alias_and_letter() -> None:
    assert collect(samplers="Top-K;nucleus;temp").sampling.samplers == (
        "top_k",
        "top_p",
        "temperature",
    )
    assert collect(sampling_seq="edskypmxt").sampling.samplers == DEFAULT_SAMPLERS
    assert collect(sampling_seq="").sampling.samplers == ()
    assert set(DEFAULT_SAMPLERS) < set(SAMPLER_LETTERS.values())


def test_older_spellings_of_the_load_mode() -> None:
    assert collect().engine.chosen_load_mode == "auto"
    assert collect(mmap=False).engine.chosen_load_mode == "none"
    assert collect(mlock=True).engine.chosen_load_mode == "mmap+mlock"
    assert collect(mlock=True, mmap=False).engine.chosen_load_mode == "mlock"
    assert collect(mlock=True, load_mode="dio").engine.chosen_load_mode == "dio"


def test_rope_scale_is_the_inverse_of_the_frequency_scale() -> None:
    assert collect().engine.chosen_rope_freq_scale == 0.0
    assert collect(rope_scale="4").engine.chosen_rope_freq_scale == 0.25
    assert collect(rope_scale="4", rope_freq_scale="0.5").engine.chosen_rope_freq_scale == 0.5


def test_secrets_stay_out_of_reprs_and_messages() -> None:
    settings, source = collect_settings({"api_key": ("s3cret",), "hf_token": "t0ken"}, {})

    assert "s3cret" not in repr(settings)
    assert "t0ken" not in repr(source)


def test_engine_settings_cross_the_socket() -> None:
    settings = collect(tensor_split="3,1", ctx_size="128").engine

    encoded = msgspec.msgpack.encode(settings)

    assert msgspec.msgpack.decode(encoded, type=EngineSettings) == settings


def test_sampling_flags_name_fields_of_sampling_params() -> None:
    fields = {entry.field for entry in all_entries() if entry.section == "sampling"}
    assert set(SamplingParams.__struct_fields__) - fields == {"min_keep"}
