"""Models from a hub: a real download over HTTP on loopback, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.hub import FakeHub, Repository

MODEL = b"GGUF" + (3).to_bytes(4, "little") + b"\1" * 500_000
SCRIPT = """
import sys
from milepost.cli import hub
from milepost.config import LogSettings, ModelSource
from milepost.errors import ConfigurationError
from milepost.logs import set_up_logging

set_up_logging(LogSettings())
source = ModelSource(
    hf_repo=sys.argv[1], hf_file=sys.argv[2], hf_token=sys.argv[3], offline=sys.argv[4] == "1"
)
try:
    print(getattr(hub, sys.argv[5])(source))
except ConfigurationError as error:
    sys.exit(f"SENTENCE {error}")
"""


@dataclass
class Client:
    """Runs fetches in fresh processes that share one cache folder."""

    hub: FakeHub
    home: Path

    def fetch(
        self,
        repo: str,
        *,
        file: str = "",
        token: str = "",
        offline: bool = False,
        how: str = "fetch_model",
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "LLAMA_ARG_", "HTTP", "http", "ALL_PROXY", "all_proxy"))
        }
        environment |= {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            **more,
        }
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, repo, file, token, str(int(offline)), how],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def sentence(self, repo: str, **options: str) -> str:
        done = self.fetch(repo, **options)  # type: ignore[arg-type]
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr.partition("SENTENCE ")[2].strip()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    repositories = {
        "user/small": Repository(
            {
                "README.md": b"hello",
                "mmproj-Q4_K_M.gguf": b"GGUF",
                "small-F16.gguf": b"GGUF F16",
                "small-Q4_K_M.gguf": MODEL,
            }
        ),
        "user/split": Repository(
            {f"big-Q8_0-0000{i}-of-00003.gguf": MODEL[: 1000 + i] for i in (1, 2, 3)}
        ),
        "user/gated": Repository({"m-Q4_K_M.gguf": MODEL}, is_gated=True),
        "user/private": Repository({"m-Q4_K_M.gguf": MODEL}, token="hf_right"),
        "user/text": Repository({"README.md": b"hello"}),
    }
    with FakeHub(repositories) as hub:
        yield Client(hub, tmp_path)


def fetched_path(done: subprocess.CompletedProcess[str]) -> Path:
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_the_usual_quant_is_fetched_with_a_progress_bar(client: Client) -> None:
    done = client.fetch("user/small", TQDM_POSITION="-1")  # shows the bar without a terminal too

    path = fetched_path(done)
    assert path.name == "small-Q4_K_M.gguf"
    assert path.read_bytes() == MODEL
    assert client.home in path.parents
    assert "100%" in done.stderr


def test_a_quant_or_a_file_can_be_named(client: Client) -> None:
    assert fetched_path(client.fetch("user/small:f16")).read_bytes() == b"GGUF F16"
    path = fetched_path(client.fetch("user/small:f16", file="small-Q4_K_M.gguf"))
    assert path.name == "small-Q4_K_M.gguf"


def test_the_projector_beside_the_model_is_fetched_when_it_is_wanted(client: Client) -> None:
    assert "mmproj" not in client.fetch("user/small").stdout
    done = client.fetch("user/small", how="fetch_with_projector")
    assert done.returncode == 0, done.stderr
    assert "small-Q4_K_M.gguf" in done.stdout
    assert "mmproj-Q4_K_M.gguf" in done.stdout
    assert "--no-mmproj does without" in done.stderr


def test_without_a_projector_there_the_model_is_fetched_alone(client: Client) -> None:
    done = client.fetch("user/split", how="fetch_with_projector")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("None)")


def test_a_cut_connection_is_resumed_where_it_broke(client: Client) -> None:
    content = MODEL * 25  # the library keeps what came in whole steps of 10 MiB
    client.hub.repositories["user/large"] = Repository({"large.gguf": content})
    client.hub.cuts["large.gguf"] = 12_000_000

    path = fetched_path(client.fetch("user/large"))

    assert path.read_bytes() == content
    assert client.hub.transfers("large.gguf") == ["", f"bytes={10 << 20}-"]


def test_a_second_call_fetches_nothing(client: Client) -> None:
    first = fetched_path(client.fetch("user/small"))

    second = fetched_path(client.fetch("user/small"))

    assert second == first
    assert len(client.hub.transfers("small-Q4_K_M.gguf")) == 1


def test_the_cache_serves_while_the_hub_is_away(client: Client) -> None:
    first = fetched_path(client.fetch("user/small"))
    client.hub.close()

    done = client.fetch("user/small")

    assert fetched_path(done) == first
    assert "the hub cannot be reached" in done.stderr
    assert "taking user/small from the cache" in done.stderr


def test_offline_asks_the_hub_nothing(client: Client) -> None:
    first = fetched_path(client.fetch("user/small"))
    client.hub.requests.clear()

    assert fetched_path(client.fetch("user/small", offline=True)) == first
    assert fetched_path(client.fetch("user/small", HF_HUB_OFFLINE="1")) == first

    assert client.hub.requests == []


def test_all_parts_of_a_split_model_are_fetched(client: Client) -> None:
    path = fetched_path(client.fetch("user/split"))

    assert path.name == "big-Q8_0-00001-of-00003.gguf"
    assert sorted(other.name for other in path.parent.iterdir()) == [
        f"big-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)
    ]


def test_a_private_repository_opens_with_a_token(client: Client) -> None:
    assert "no repository user/private, or it is private" in client.sentence("user/private")
    assert fetched_path(client.fetch("user/private", token="hf_right")).read_bytes() == MODEL
    assert fetched_path(client.fetch("user/private", HF_TOKEN="hf_right")).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("repo", "sentence"),
    [
        ("user/missing", "the hub has no repository user/missing"),
        ("user/..", "user/.. cannot be the name of a repository"),
        ("user/gated", "the hub refuses access to user/gated: accept its terms"),
        ("user/text", "the repository user/text holds no GGUF model"),
        (
            "user/small:Q2_K",
            "the repository user/small has no Q2_K; it has small-F16.gguf, small-Q4_K_M.gguf",
        ),
    ],
)
def test_what_the_hub_lacks_is_one_sentence(client: Client, repo: str, sentence: str) -> None:
    shown = client.sentence(repo)

    assert sentence in shown
    assert "\n" not in shown


def test_a_file_that_is_not_there_is_named(client: Client) -> None:
    assert "has no other.gguf; it has small-F16" in client.sentence("user/small", file="other.gguf")


def test_no_hub_and_no_cache_is_one_sentence(client: Client) -> None:
    client.hub.close()

    shown = client.sentence("user/small")

    assert "the hub cannot be reached" in shown
    assert "no model of user/small is in the cache" in shown


def test_a_hub_that_fails_is_named_with_its_status(client: Client) -> None:
    client.hub.status = 400

    assert "the hub answered with status 400" in client.sentence("user/small")
