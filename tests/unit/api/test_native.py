from __future__ import annotations

import msgspec
from tests.fakes.engine import delta, finished
from tests.unit.api.conftest import Api
from tests.unit.api.events import read_events

from milepost.config import EngineSettings, ServerSettings, Settings
from milepost.protocol.messages import TokenLogprob


def test_completion_in_one_piece(api: Api) -> None:
    end = msgspec.structs.replace(finished("stop_string"), stop_string="!")

    answer = api.complete(delta("a\nb"), end, path="/completion", return_tokens=True).json()

    assert answer["content"] == "a\nb"
    assert answer["tokens"] == [97, 10, 98]
    assert answer["stop"] is True
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "!")
    assert answer["has_new_line"] is True
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (10, 3)
    assert answer["prompt"] == "hi"
    assert answer["generation_settings"]["top_k"] == 40


def test_completion_as_a_stream_has_no_end_mark(api: Api) -> None:
    steps = (delta("a\n"), delta("b"), finished("context_full"))

    events = read_events(api.complete(*steps, path="/completion", stream=True))

    assert [event["content"] for event in events] == ["a\n", "b", ""]
    assert [event["stop"] for event in events] == [False, False, True]
    assert [event["tokens_predicted"] for event in events] == [2, 3, 3]
    assert events[-1]["has_new_line"] is True
    assert events[-1]["truncated"] is True
    assert events[-1]["timings"]["prompt_n"] == 6


def test_completion_of_several_prompts_is_a_list(api: Api) -> None:
    answers = api.complete(path="/completions", prompt=["x", "y"]).json()

    assert [(answer["index"], answer["prompt"]) for answer in answers] == [(0, "x"), (1, "y")]


def test_completion_probabilities(api: Api) -> None:
    steps = (
        delta("a", logprobs=(TokenLogprob(token=97, token_bytes=b"a", logprob=-0.1),)),
        finished(),
    )

    answer = api.complete(*steps, path="/completion", logprobs=1).json()

    assert answer["completion_probabilities"] == [
        {"id": 97, "token": "a", "bytes": [97], "logprob": -0.1, "top_logprobs": []}
    ]
    assert api.engine.specs[0].num_logprobs == 1


def test_tokenize_and_back(api: Api) -> None:
    content = "hé<|im_end|>"

    plain = api.post("/tokenize", content=content).json()
    pieces = api.post("/tokenize", content=content, with_pieces=True).json()
    text = api.post("/tokenize", content=content, parse_special=False).json()

    assert plain == {"tokens": [104, 195, 169, 258]}
    assert pieces["tokens"][1:] == [
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
        {"id": 258, "piece": "<|im_end|>"},
    ]
    assert len(text["tokens"]) == 3 + 10
    assert api.post("/detokenize", **plain).json() == {"content": content}


def test_detokenize_refuses_what_is_no_token(api: Api) -> None:
    for tokens in ([5, 999], ["x"], 7.5, [True], "abc"):
        response = api.post("/detokenize", tokens=tokens)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tokens"


def test_apply_template(api: Api) -> None:
    messages = [{"role": "user", "content": "hi"}]

    answer = api.post("/apply-template", messages=messages).json()
    closed = api.post("/apply-template", messages=messages, add_generation_prompt=False).json()

    assert answer["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert closed["prompt"] == "<|im_start|>user\nhi<|im_end|>\n"


def test_props_show_the_files_name_but_not_its_folder(api: Api) -> None:
    api.settings = Settings(engine=EngineSettings(model_path="/home/someone/tiny.gguf"))

    props = api.get("/props").json()

    assert props["model_path"] == "tiny.gguf"
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["eos_token"] == "<|endoftext|>"
    assert "im_start" in props["chat_template"]


def test_slots(api: Api) -> None:
    slots = api.get("/slots").json()

    assert [slot["is_processing"] for slot in slots] == [False, True]
    assert slots[1]["id_task"] == 7
    assert slots[1]["next_token"] == [{"has_next_token": True, "n_decoded": 5}]


def test_slots_and_metrics_can_be_off(api: Api) -> None:
    api.settings = Settings(server=ServerSettings(slots=False))

    slots, metrics = api.get("/slots"), api.get("/metrics")

    assert (slots.status_code, metrics.status_code) == (501, 501)
    assert "Start it with `--slots`" in slots.json()["error"]["message"]
    assert "Start it with `--metrics`" in metrics.json()["error"]["message"]


def test_metrics(api: Api) -> None:
    api.settings = Settings(server=ServerSettings(metrics=True))

    response = api.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "milepost_prompt_tokens_total 60.0\n" in response.text
    assert "milepost_requests_deferred 2.0\n" in response.text
    assert "# TYPE milepost_tokens_predicted_total counter" in response.text
    assert "milepost_prompt_tokens_prefilled_twice_total 5.0\n" in response.text
    assert 'milepost_restores_total{source="kv_cache"} 1.0\n' in response.text
    assert 'milepost_restores_total{source="ram"} 2.0\n' in response.text
    assert response.text.count("# TYPE milepost_restores_total") == 1
    assert 'milepost_evictions_total{what="segment"} 4.0\n' in response.text
    assert "milepost_cache_bytes 500.0\n" in response.text


def test_models_list_the_served_one_with_its_names(api: Api) -> None:
    api.settings = Settings(
        engine=EngineSettings(model_path="/x/tiny-full.gguf"),
        server=ServerSettings(alias=("tiny", "small")),
    )

    listed = api.get("/v1/models").json()

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert listed["data"][0]["created"] == 1_700_000_000
    assert listed["data"][0]["meta"]["n_ctx_train"] == 2048
    for name in ("tiny", "small", "tiny-full.gguf", "tiny-full"):
        assert api.get(f"/v1/models/{name}").json()["id"] == "tiny"
    assert api.get("/v1/models/gpt").status_code == 404
