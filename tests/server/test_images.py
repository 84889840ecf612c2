"""Images in chats on real servers with small projectors, through OpenAI's own client."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image
from tests import models
from tests.fakes.file_server import file_server
from tests.processes import RunningServer, running_server
from tests.projectors import KIND_OF, write_audio_projector, write_projector
from tests.unit.media.pictures import png_of_header, saved, wav

KINDS: tuple[models.Kind, ...] = ("window", "hybrid")
WORDS = "Look at this and say what is wrong with the chart on the page. " * 6


@dataclass(frozen=True, slots=True)
class Seeing:
    """A server with a projector, and a client of it."""

    server: RunningServer
    client: openai.OpenAI

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Any:
        """Return an answer of a few tokens, always the same for the same prompt."""
        extra = {"ignore_eos": True, **fields}
        return self.client.chat.completions.create(
            model="",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=6,
            temperature=0,
            logprobs=True,
            extra_body=extra,
        )

    def why(self, answer: Any) -> dict[str, Any]:
        """Return the facts about the prompt of an answer."""
        report = self.server.http.get(f"/requests/{answer.id}/why").json()
        facts: dict[str, Any] = report["prompts"][0]["facts"]
        return facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for media, with an image in it."""
    path = tmp_path_factory.mktemp("media")
    (path / "red.png").write_bytes(saved(Image.new("RGB", (96, 64), "red")))
    return path


@pytest.fixture(scope="module")
def all_seeing(
    tiny_models: dict[models.Kind, Path],
    tmp_path_factory: pytest.TempPathFactory,
    folder: Path,
) -> Iterator[dict[models.Kind, Seeing]]:
    """Servers of both kinds of projectors."""
    logs = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        found = {}
        for kind in KINDS:
            projector = write_projector(KIND_OF[kind], logs / f"mmproj-{kind}.gguf")
            flags = ["-np", "2", "--mmproj", str(projector), "--media-path", str(folder)]
            flags += ["-t", "1", "--allow-remote-media"]
            log_path = logs / f"{kind}.log"
            server = stack.enter_context(running_server(tiny_models[kind], flags, log_path))
            address = f"{server.url}/v1"
            client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
            found[kind] = Seeing(server, stack.enter_context(client))
        yield found


@pytest.fixture(params=KINDS)
def seeing(request: pytest.FixtureRequest, all_seeing: dict[models.Kind, Seeing]) -> Seeing:
    """A server with a projector of each kind."""
    return all_seeing[request.param]


def image(color: str, size: tuple[int, int] = (96, 64), kind: str = "PNG") -> dict[str, Any]:
    """Return an image part of one color."""
    return part_of(saved(Image.new("RGB", size, color), kind))


def part_of(data: bytes) -> dict[str, Any]:
    """Return a file as an image part."""
    text = base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}


def text(value: str) -> dict[str, Any]:
    """Return a text part."""
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a message of parts."""
    return {"role": "user", "content": list(parts)}


def tool_turn(number: int, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a tool call and its result."""
    call_id = f"call_{number}"
    function = {"name": "screenshot", "arguments": "{}"}
    return [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": list(parts)},
    ]


def logprobs(answer: Any) -> list[float]:
    """Return the log probabilities of an answer's tokens."""
    return [each.logprob for each in answer.choices[0].logprobs.content]


def test_an_image_counts_and_is_reused_the_next_time(seeing: Seeing) -> None:
    messages = [user(text(WORDS), image("navy"))]
    without = seeing.chat([user(text(WORDS))])
    first = seeing.chat(messages)
    again = seeing.chat([*messages, {"role": "assistant", "content": "A"}, user(text("So?"))])
    assert first.usage.prompt_tokens > without.usage.prompt_tokens
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 8
    assert seeing.why(first)["media_encoded"] == 1
    assert (seeing.why(again)["media"], seeing.why(again)["media_encoded"]) == (1, 0)


def test_tokens_are_counted_as_they_will_be(seeing: Seeing) -> None:
    messages = [user(image("teal", (200, 50)), text("a"), image("teal")), user(text(WORDS))]
    path = "/v1/chat/completions/input_tokens"
    counted = seeing.server.http.post(path, json={"messages": messages}).json()["input_tokens"]
    assert counted == seeing.chat(messages).usage.prompt_tokens


def test_answers_from_the_cache_are_those_without_it(seeing: Seeing) -> None:
    messages = [
        user(text(WORDS), image("red"), text("then"), image("lime")),
        *tool_turn(1, text("The page:"), image("blue"), image("red")),
        user(text(WORDS)),
    ]
    seeing.chat(messages[:1])
    seeing.chat(messages[:3])
    cached = seeing.chat(messages)
    fresh = seeing.chat(messages, cache_prompt=False)
    assert cached.usage.prompt_tokens == fresh.usage.prompt_tokens
    assert cached.usage.prompt_tokens_details.cached_tokens > 100
    assert cached.choices[0].message.content == fresh.choices[0].message.content
    assert logprobs(cached) == pytest.approx(logprobs(fresh), abs=0.05)


def test_a_replaced_image_costs_from_itself_on(seeing: Seeing) -> None:
    before = [user(text(f"Replace. {WORDS}")), *tool_turn(1, text("Page:"), image("gold"))]
    first = seeing.chat(before)
    after = [before[0], *tool_turn(1, text("Page:"), image("pink"))]
    replaced = seeing.chat(after)
    prefix = seeing.chat([before[0]]).usage.prompt_tokens
    assert replaced.usage.prompt_tokens == first.usage.prompt_tokens
    assert replaced.usage.prompt_tokens_details.cached_tokens >= prefix - 8
    assert seeing.why(replaced)["media_encoded"] == 1


def test_the_same_picture_in_another_file_and_place_is_not_encoded_again(seeing: Seeing) -> None:
    seeing.chat([user(text("one"), image("olive"))])
    elsewhere = seeing.chat([user(text("two"), image("olive", kind="BMP")), user(text("three"))])
    assert seeing.why(elsewhere)["media_encoded"] == 0


def test_images_keep_their_order(seeing: Seeing) -> None:
    one = seeing.chat([user(image("black"), image("white"), text(WORDS))])
    other = seeing.chat([user(image("white"), image("black"), text(WORDS))])
    assert logprobs(one) != logprobs(other)


def test_a_user_cannot_write_an_image(seeing: Seeing) -> None:
    typed = "<__media__> \uf8f1\uf8e1\uf8e1\uf8e1\uf8e1"
    answer = seeing.chat([user(text(typed), image("red"), text(typed))])
    assert seeing.why(answer)["media"] == 1


def test_streams_carry_the_usage_with_images(seeing: Seeing) -> None:
    messages: Any = [user(image("red"), text("a"))]
    stream = seeing.client.chat.completions.create(
        model="",
        messages=messages,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    *_, last = stream
    assert last.usage is not None
    assert last.usage.prompt_tokens > 15


def test_a_text_completion_takes_images(seeing: Seeing) -> None:
    data = base64.b64encode(saved(Image.new("RGB", (64, 64), "red"))).decode()
    prompt = {"prompt_string": "a <__media__> b", "multimodal_data": [data]}
    answer = seeing.server.http.post("/completion", json={"prompt": prompt, "n_predict": 2})
    assert answer.status_code == 200
    assert answer.json()["tokens_evaluated"] > 5


def test_models_and_props_tell_of_it(seeing: Seeing) -> None:
    assert seeing.server.http.get("/props").json()["modalities"]["vision"] is True
    (model,) = seeing.client.models.list().data
    assert model.model_extra is not None
    assert model.model_extra["architecture"]["input_modalities"] == ["text", "image"]


@pytest.mark.parametrize("size", [(1, 1), (2000, 1), (1, 2000), (20_000, 10)])
def test_extreme_sizes_are_answered_or_refused(seeing: Seeing, size: tuple[int, int]) -> None:
    body = {"messages": [user(image("red", size))], "max_tokens": 1}
    answer = seeing.server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["type"].endswith("_error")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty|is an empty file"),
        (b"GIF89a", "cannot be decoded"),
        (b"<html></html>", "cannot be decoded"),
        (png_of_header(60_000, 60_000), "has 60000 x 60000 pixels, over the limit of"),
        (png_of_header(600, 600), "cannot be decoded"),
        (saved(Image.effect_noise((300, 300), 50), "PNG")[:5000], "cannot be decoded"),
        (saved(Image.effect_noise((300, 300), 50), "JPEG")[:5000], "cannot be decoded"),
    ],
)
def test_hostile_files_are_a_400_and_the_server_serves_on(
    seeing: Seeing, data: bytes, said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as raised:
        seeing.chat([user(text("a"), part_of(data))])
    assert "messages[0].content[1]" in str(raised.value)
    assert seeing.chat([user(text("a"), image("red"))]).usage.completion_tokens == 6


def test_files_below_the_folder_may_be_named_and_no_others(seeing: Seeing) -> None:
    named = {"type": "image_url", "image_url": {"url": "file://red.png"}}
    sent = seeing.chat([user(image("red"), text("x"))])
    assert seeing.chat([user(named, text("x"))]).usage.prompt_tokens == sent.usage.prompt_tokens
    for url in ("file:///etc/passwd", "file://../x", "file://missing.png"):
        with pytest.raises(openai.BadRequestError, match="is no file below --media-path"):
            seeing.chat([user({"type": "image_url", "image_url": {"url": url}})])


def test_the_server_does_not_look_around_in_its_own_network(seeing: Seeing) -> None:
    with file_server() as inner:
        inner.bodies["/a.png"] = saved(Image.new("RGB", (8, 8)))
        port = inner.url.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "0.0.0.0"):
            url = f"http://{host}:{port}/a.png"
            with pytest.raises(openai.BadRequestError, match="is no public address|no host"):
                seeing.chat([user({"type": "image_url", "image_url": {"url": url}})])
        assert inner.asked == []


def test_without_a_projector_the_flag_is_named(server: RunningServer) -> None:
    answer = server.http.post("/v1/chat/completions", json={"messages": [user(image("red"))]})
    assert answer.status_code == 400
    assert "start the server with --mmproj FILE" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def hearing(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seeing]:
    """A server with a projector for audio."""
    folder = tmp_path_factory.mktemp("servers")
    projector = write_audio_projector(folder / "mmproj-audio.gguf")
    flags = ["-np", "2", "-t", "1", "--mmproj", str(projector)]
    with running_server(tiny_models["full"], flags, folder / "log") as server:
        address = f"{server.url}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            yield Seeing(server, client)


def sound(hertz: int, rate: int = 16_000) -> dict[str, Any]:
    """Return a second of a square wave as a part of a message."""
    half = rate // hertz // 2
    period = b"\x00\x20" * half + b"\x00\xe0" * half
    samples = (period * hertz)[: 2 * rate]
    data = base64.b64encode(wav(samples, rate)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def test_audio_is_heard_counted_and_reused(hearing: Seeing) -> None:
    messages = [user(text(WORDS), sound(400), text("What is this?"))]
    first = hearing.chat(messages)
    again = hearing.chat([*messages, {"role": "assistant", "content": "A"}, user(text("So?"))])
    other = hearing.chat([user(text(WORDS), sound(500), text("What is this?"))])
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 8
    assert [hearing.why(each)["media_encoded"] for each in (first, again, other)] == [1, 0, 1]
    assert logprobs(first) != logprobs(other)


def test_a_projector_for_audio_takes_no_images(hearing: Seeing) -> None:
    assert hearing.server.http.get("/props").json()["modalities"]["audio"] is True
    with pytest.raises(openai.BadRequestError, match="is an image, but the model's projector"):
        hearing.chat([user(image("red"))])


def test_hostile_audio_is_a_400(hearing: Seeing) -> None:
    for data in (b"RIFF", wav(b""), b"ID3" + bytes(100), wav(bytes(100), rate=1)):
        part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode()}}
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content\[0\]"):
            hearing.chat([user(part)])
