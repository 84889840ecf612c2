"""Both servers get the same settings, and a server that cannot start says why."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milepost.bench.machine import count_physical_cores, describe_machine, list_versions
from milepost.bench.servers import ServedModel, ServerProcess, clean_environment, make_milepost
from milepost.bench.upstream import make_params
from milepost.errors import BenchmarkFailed

SERVED = ServedModel(
    model="folder/tiny.gguf",
    ctx_size=4096,
    parallel=3,
    threads=2,
    cache_ram_mib=63,
    ctx_checkpoints=32,
    checkpoint_min_step=256,
    chat_template_file="folder/chatml.jinja",
)


def fake_library() -> Any:
    def make() -> Any:
        return SimpleNamespace(
            model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
        )

    return SimpleNamespace(CommonParams=make)


def test_upstream_gets_every_setting(tmp_path: Path) -> None:
    template = tmp_path / "chatml.jinja"
    template.write_text("{{ messages }}", encoding="utf-8")
    served = ServedModel(
        model="tiny.gguf",
        ctx_size=4096,
        parallel=3,
        threads=2,
        cache_ram_mib=63,
        ctx_checkpoints=32,
        checkpoint_min_step=256,
        chat_template_file=str(template),
    )
    params = make_params(fake_library(), served, 8123)
    assert (params.model.path, params.port) == ("tiny.gguf", 8123)
    assert (params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch) == (
        4096,
        3,
        2048,
        512,
    )
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (2, 2)
    assert (params.cache_ram_mib, params.n_ctx_checkpoints) == (63, 32)
    assert params.checkpoint_min_step == 256
    assert params.chat_template == "{{ messages }}"
    assert params.kv_unified


def test_settings_that_are_left_out_stay_upstreams_own() -> None:
    served = ServedModel(model="tiny.gguf", ctx_size=4096, parallel=1, threads=1)
    params = make_params(fake_library(), served, 1)
    unset = {"cache_ram_mib", "n_ctx_checkpoints", "checkpoint_min_step", "chat_template"}
    assert not unset & set(vars(params))


def test_milepost_gets_every_setting_or_a_note_about_it(tmp_path: Path) -> None:
    process = make_milepost(SERVED, tmp_path)
    command = " ".join(process.command)
    assert "--ctx-size 4096 --parallel 3 --threads 2 --batch-size 2048" in command
    for flag, value in (("--cache-ram", 63), ("--ctx-checkpoints", 32)):
        is_noted = any(flag in note for note in process.notes)
        assert is_noted != (f"{flag} {value}" in command)
    assert process.command[-1] == "--port"


def test_settings_are_described_without_paths() -> None:
    described = SERVED.describe()
    assert "model" not in described
    assert described["chat_template_file"] == "chatml.jinja"
    assert described["cache_ram_mib"] == 63


def test_variables_of_servers_reach_none_of_them() -> None:
    environment = {"PATH": "/bin", "LLAMA_ARG_CTX_SIZE": "1", "MILEPOST_LIBLLAMA": "x"}
    assert clean_environment(environment) == {"PATH": "/bin", "MILEPOST_LIBLLAMA": "x"}


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    process = ServerProcess("broken", command, tmp_path / "broken.log")
    with pytest.raises(BenchmarkFailed, match=r"(?s)broken ended with status 3.*no such model"):
        process.start()


def test_machine_is_described_without_its_name() -> None:
    machine = describe_machine()
    assert set(machine) == {"cpu", "physical_cores", "logical_cores", "memory_gib", "system"}
    assert 1 <= count_physical_cores() <= machine["logical_cores"]
    assert "xllamacpp" in list_versions()
