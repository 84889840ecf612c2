"""The command line as a user types it, and the sentences for what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from milepost.cli.collect import all_entries, collect_settings
from milepost.cli.flags import FlagCommand
from milepost.cli.foreign_flags import ACCEPTED_SWITCHES, ACCEPTED_WITH_VALUE, NOT_YET
from milepost.cli.main import run
from milepost.config import Settings


def parse(line: str) -> Settings:
    parsed: list[Settings] = []

    def keep(**given: Any) -> None:
        parsed.append(collect_settings(given, {})[0])

    FlagCommand("serve", callback=keep).main(line.split(), standalone_mode=False)
    return parsed[0]


def test_short_flags_of_several_letters() -> None:
    engine = parse("-c 4096 -np 2 -b 1024 -ub 256 -ngl 99 -ctk q8_0 -ctv q8_0 -fa on -tb 3").engine

    assert (engine.ctx_size, engine.parallel) == (4096, 2)
    assert (engine.batch_size, engine.ubatch_size) == (1024, 256)
    assert (engine.n_gpu_layers, engine.threads_batch) == (99, 3)
    assert (engine.cache_type_k, engine.cache_type_v) == ("q8_0", "q8_0")
    assert engine.flash_attn == "on"


def test_switches_and_their_negations() -> None:
    settings = parse("--swa-full --no-mmap -nkvo --no-slots --no-webui --metrics --ignore-eos -sp")

    assert settings.engine.swa_full
    assert not settings.engine.mmap
    assert not settings.engine.kv_offload
    assert not settings.server.slots
    assert not settings.server.webui
    assert settings.server.metrics
    assert settings.sampling.ignore_eos
    assert settings.special


def test_the_last_of_two_counts() -> None:
    settings = parse("--port 1 --port 2 --no-jinja --jinja")

    assert settings.server.port == 2
    assert settings.chat.jinja


def test_negative_values_equal_signs_and_underscores() -> None:
    settings = parse("--temp -1 --top_k=-1 -n -1 --repeat-last-n -1")

    assert settings.sampling.temperature == -1.0
    assert settings.sampling.top_k == -1
    assert settings.n_predict == -1
    assert settings.sampling.repeat_last_n == -1


def test_a_value_that_looks_like_a_flag_is_a_value() -> None:
    assert parse("--chat-template --port").chat.chat_template == "--port"


def test_flags_without_effect_are_accepted() -> None:
    line = "-kvu --cont-batching --no-context-shift --threads-http 8 --log-colors=off --port 5"

    assert parse(line).server.port == 5


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--por 1", "there is no flag --por; did you mean --port?"),
        ("--ctx-sizes 1", "there is no flag --ctx-sizes; did you mean --ctx-size?"),
        ("--qqq", "there is no flag --qqq; see milepost serve --help"),
        ("-lcs 0", "milepost does not have -lcs yet"),
        ("--lora x", "milepost does not have --lora yet"),
        ("--cache_reuse 1", "milepost does not have --cache-reuse yet"),
        ("--no-kv-unified", "does not have --no-kv-unified yet; all requests share one KV cache"),
        ("x.gguf", "'x.gguf' was not expected; a model file is given with -m x.gguf"),
        ("--port", "--port needs a value"),
    ],
)
def test_a_wrong_flag_gets_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse(line)
    assert sentence in caught.value.message


def test_foreign_flags_are_in_one_list_only() -> None:
    ours = {
        name
        for entry in all_entries()
        for name in f"{entry.flag.names} {entry.flag.negated}".split()
    }
    lists = [ours, set(ACCEPTED_SWITCHES), set(ACCEPTED_WITH_VALUE), set(NOT_YET)]

    assert sum(len(names) for names in lists) == len(set().union(*lists))


def test_help_shows_every_setting_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0

    text = capsys.readouterr().out
    for entry in all_entries():
        assert f" {entry.flag.names.split()[0]}" in text
    assert text.index("Model:") < text.index("Server:") < text.index("Logging:")


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["serve", "--port", "x"], 2, "--port x must be a whole number from 0 to 65535"),
        (["serve", "--qqq"], 2, "there is no flag --qqq"),
        (["server"], 2, "server"),
        (["serve"], 1, "no model was given; for example -m model.gguf"),
        (["serve", "-hff", "a.gguf"], 1, "-hff names a file of a hub repository"),
        (["serve", "-hf", "nonsense"], 1, "-hf nonsense is not of the form user/repo"),
        (["serve", "-m", "missing.gguf"], 1, "there is no file missing.gguf"),
        (["serve", "--log-file", "/", "-m", "x"], 1, "the log file / cannot be opened"),
    ],
)
def test_errors_are_one_sentence_and_a_status(
    arguments: list[str], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == status

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("milepost: error: ")
    assert shown.err.count("\n") == 1
    assert sentence in shown.err


def test_a_bad_key_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\1" * 16)
    keys = tmp_path / "keys"
    keys.write_text("# none yet\n\n")

    assert run(["serve", "-m", str(model), "--api-key-file", str(keys)]) == 1

    assert f"the key file {keys} holds no key" in capsys.readouterr().err
