"""Images and audio on their way from a request to the engine, and what is said of bad ones."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from tests.fakes.engine import MODEL
from tests.unit.api.conftest import Api
from tests.unit.media.pictures import picture, png_of_header, saved, wav

from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.config import MediaInputSettings, Settings

SEEING = msgspec.structs.replace(MODEL, has_vision=True)
HEARING = msgspec.structs.replace(MODEL, has_audio=True, audio_sample_rate=16_000)


def base64_of(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode()


def image(data: bytes | None = None) -> dict[str, Any]:
    """Return an image part."""
    url = f"data:image/png;base64,{base64_of(saved(picture()) if data is None else data)}"
    return {"type": "image_url", "image_url": {"url": url}}


MULTIMODAL = {"prompt_string": "<__media__>d", "multimodal_data": [base64_of(saved(picture()))]}
AUDIO = {"type": "input_audio", "input_audio": {"data": base64_of(wav(bytes(64))), "format": "wav"}}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": list(parts)}]


def test_an_image_reaches_the_engine_with_its_place_and_content(api: Api) -> None:
    api.engine.model = SEEING
    text = {"type": "text", "text": "look"}
    assert api.chat(messages=user(text, image(), text)).status_code == 200
    (spec,) = api.engine.specs
    (ref,) = spec.media
    assert (ref.kind, ref.width, ref.height) == ("image", 4, 2)
    assert bytes(list(spec.tokens[ref.pos - 4 : ref.pos + 4])) == b"looklook"
    assert len(spec.media_contents.held[ref.key]) == 24


@pytest.mark.parametrize("template", ["chatglm4", "bailing", "deepseek3", "chatml"])
def test_images_at_the_end_of_a_message_stand_before_its_boundary(api: Api, template: str) -> None:
    api.engine.model, api.template = SEEING, BUILTIN_TEMPLATES[template]
    text = {"type": "text", "text": "look"}
    answer = {"role": "assistant", "content": "ok"}
    messages = [*user(text, image()), answer, *user(image(), text, image(), image())]
    assert api.chat(messages=messages).status_code == 200
    found = {(each.kind, each.message_index): each for each in api.engine.specs[0].boundaries}
    assert found["message_end", 0].num_media == 1
    assert found["message_end", 1].num_media == 1
    assert found["prompt_end", 2].num_media == 4


def test_the_same_image_is_not_decoded_again_but_can_be(api: Api) -> None:
    api.engine.model = SEEING
    with api.connection() as send:
        for _ in range(2):
            send("POST", "/v1/chat/completions", json={"messages": user(image())})
    first, second = api.engine.specs
    assert second.media == first.media
    assert second.media_contents.held == {}
    key = first.media[0].key

    async def read() -> bytes:
        assert second.media_contents.read is not None
        return await second.media_contents.read(key)

    assert asyncio.run(read()) == first.media_contents.held[key]


def test_a_clear_forgets_what_images_stand_for(api: Api) -> None:
    api.engine.model = SEEING
    body = {"messages": user(image())}
    with api.connection() as send:
        send("POST", "/v1/chat/completions", json=body)
        send("DELETE", "/cache")
        send("POST", "/v1/chat/completions", json=body)
    first, second = api.engine.specs
    assert second.media_contents.held == first.media_contents.held


def test_images_of_tool_results_keep_their_order(api: Api) -> None:
    api.engine.model = SEEING
    small, large = saved(picture(size=(2, 2))), saved(picture(size=(8, 8)))
    call = {"id": "c", "type": "function", "function": {"name": "shot", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [image(small), image(large)]},
    ]
    assert api.chat(messages=messages).status_code == 200
    assert [ref.width for ref in api.engine.specs[0].media] == [2, 8]


def test_audio_reaches_the_engine(api: Api) -> None:
    api.engine.model = HEARING
    assert api.chat(messages=user(AUDIO)).status_code == 200
    (ref,) = api.engine.specs[0].media
    assert (ref.kind, ref.num_samples) == ("audio", 32)


@pytest.mark.parametrize(
    ("model", "part", "said"),
    [
        (MODEL, image(), "is an image, but the model is loaded without a projector and takes text"),
        (MODEL, AUDIO, "is audio, but the model is loaded without a projector and takes text only"),
        (SEEING, AUDIO, "is audio, but the model's projector takes none; leave it out"),
        (HEARING, image(), "is an image, but the model's projector takes none; leave it out"),
        (SEEING, image(b"GIF89a"), "cannot be decoded"),
        (SEEING, image(png_of_header(9000, 9000)), "has 9000 x 9000 pixels, over the limit of"),
        (SEEING, {"type": "image_url", "image_url": "http://127.0.0.1/a"}, "is a URL, and this"),
        (SEEING, {"type": "image_url", "image_url": "file:///etc/passwd"}, "is a file URL, and"),
    ],
)
def test_what_cannot_be_taken_is_a_400_that_names_the_part(
    api: Api, model: Any, part: dict[str, Any], said: str
) -> None:
    api.engine.model = model
    answer = api.chat(messages=user({"type": "text", "text": "a"}, part))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(f"messages[0].content[1] {said}")
    assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
    assert api.engine.specs == []


def test_limits_come_from_the_settings(api: Api) -> None:
    api.engine.model = SEEING
    api.settings = Settings(media=MediaInputSettings(max_count=1))
    answer = api.chat(messages=user(image(), image()))
    assert answer.status_code == 400
    assert "over the limit of 1" in answer.json()["error"]["message"]


def test_props_and_models_tell_what_is_taken(api: Api) -> None:
    for model, vision, audio in ((MODEL, False, False), (SEEING, True, False)):
        api.engine.model = model
        props = api.get("/props").json()
        assert props["modalities"] == {"vision": vision, "audio": audio, "video": False}
        assert props["media_marker"] == "<__media__>"
    models = api.get("/v1/models").json()
    assert models["data"][0]["architecture"]["input_modalities"] == ["text", "image"]
    assert models["models"][0]["capabilities"] == ["completion", "multimodal"]


def test_an_applied_template_shows_the_marker(api: Api) -> None:
    text = {"type": "text", "text": "look"}
    prompt = api.post("/apply-template", messages=user(text, image(), text)).json()["prompt"]
    assert "look<__media__>look" in prompt


def test_a_text_completion_takes_images_at_its_markers(api: Api) -> None:
    api.engine.model = SEEING
    data = [base64_of(saved(picture(size=size))) for size in ((2, 2), (3, 3))]
    prompt = {"prompt_string": "a<__media__>b<__media__>", "multimodal_data": data}
    assert api.complete(path="/completion", prompt=prompt).status_code == 200
    (spec,) = api.engine.specs
    assert bytes(spec.tokens) == b"ab"
    assert [(ref.pos, ref.width) for ref in spec.media] == [(1, 2), (2, 3)]


def test_text_completions_with_and_without_media_may_be_mixed(api: Api) -> None:
    api.engine.model = SEEING
    data = [f"data:image/png;base64,{base64_of(saved(picture()))}"]
    prompts = ["c", {"prompt_string": "<__media__>d", "multimodal_data": data}]
    assert api.complete(path="/completion", prompt=prompts).status_code == 200
    assert [bytes(spec.tokens) for spec in api.engine.specs] == [b"c", b"d"]
    assert [len(spec.media) for spec in api.engine.specs] == [0, 1]


def test_a_list_beside_a_multimodal_prompt_is_one_prompt(api: Api) -> None:
    api.engine.model = SEEING
    assert api.complete(path="/completion", prompt=[["a", "b"], MULTIMODAL]).status_code == 200
    assert [bytes(spec.tokens) for spec in api.engine.specs] == [b"ab", b"d"]


def test_a_prompt_may_be_nothing_but_an_image(api: Api) -> None:
    api.engine.model = SEEING
    prompt = {**MULTIMODAL, "prompt_string": "<__media__>"}
    assert api.complete(path="/completion", prompt=prompt).status_code == 200
    (spec,) = api.engine.specs
    assert (len(spec.tokens), len(spec.media)) == (0, 1)


def test_a_text_completion_takes_audio(api: Api) -> None:
    api.engine.model = HEARING
    data = [base64_of(wav(bytes(64)))]
    prompt = {"prompt_string": "a<__media__>", "multimodal_data": data}
    assert api.complete(path="/completion", prompt=prompt).status_code == 200
    assert api.engine.specs[0].media[0].kind == "audio"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"prompt_string": "a", "multimodal_data": ["AA"]}, "holds 0 times <__media__>, but there"),
        ({"prompt_string": 5, "multimodal_data": ["AA"]}, "prompt_string' must be a string"),
        ({"prompt_string": "a", "multimodal_data": 5}, "must be a list of base64 texts"),
        (
            {"prompt_string": "<__media__>a", "multimodal_data": ["AA"]},
            "prompt.multimodal_data[0] cannot be decoded",
        ),
        ([MULTIMODAL, []], "prompt[1] is empty; send at least one token"),
        (["a", {**MULTIMODAL, "prompt_string": "b"}], "prompt[1].prompt_string holds 0 times"),
        ([7, MULTIMODAL], "prompt must be a string, or a list of strings and token ids, but"),
    ],
)
def test_bad_multimodal_prompts_get_a_sentence(api: Api, prompt: object, said: str) -> None:
    api.engine.model = SEEING
    answer = api.complete(path="/completion", prompt=prompt)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_tokens_are_counted_without_asking_for_an_answer(api: Api) -> None:
    api.engine.model = SEEING
    text = {"type": "text", "text": "look"}
    path = "/v1/chat/completions/input_tokens"
    with_image = api.post(path, messages=user(text, image())).json()
    without = api.post(path, messages=user(text)).json()
    assert with_image["object"] == "response.input_tokens"
    assert with_image["input_tokens"] == without["input_tokens"] + 8
    assert api.engine.specs == []
