"""Streams of several servers, and what is read out of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milepost.traces.answer import AnswerReader

TIMINGS = {
    "cache_n": 70, "prompt_n": 30, "prompt_ms": 15.0,
    "predicted_n": 4, "predicted_ms": 8.0, "predicted_per_second": 500.0,
}  # fmt: skip
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 60},
}


def chunk(delta: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [] if delta is None else [{"index": 0, "delta": delta}], **fields}


def read(*events: dict[str, Any] | str, start_s: float = 10.0) -> AnswerReader:
    """Read events that come one second apart, the first one second after the request."""
    reader = AnswerReader(start_s)
    for number, event in enumerate(events, start=1):
        data = event if isinstance(event, str) else f"data: {json.dumps(event)}"
        reader.read_line(data, start_s + number)
    return reader


def test_the_first_token_is_the_first_text_not_the_role() -> None:
    reader = read(chunk({"role": "assistant", "content": ""}), "", ":", chunk({"content": "Hi"}))

    answer = reader.finish("ok", 16.0)

    assert answer.ttft_s == 4.0
    assert answer.took_s == 6.0
    assert answer.reply == {"role": "assistant", "content": "Hi"}


def test_an_answer_without_text_has_its_first_token_at_the_end() -> None:
    reader = read(chunk({"role": "assistant"}), "data: [DONE]")

    assert reader.is_finished
    assert reader.finish("ok", 12.5).ttft_s == 2.5


def test_timings_come_before_usage() -> None:
    answer = read(chunk({"content": "a"}), chunk(usage=USAGE, timings=TIMINGS)).finish("ok", 12.0)

    assert (answer.num_prompt_tokens, answer.num_cached, answer.num_prefilled) == (100, 70, 30)
    assert answer.prefill_ms == 15.0
    assert (answer.num_decoded, answer.decode_tokens_per_s) == (4, 500.0)


def test_timings_without_cached_tokens_are_completed_from_usage() -> None:
    timings = {key: value for key, value in TIMINGS.items() if key != "cache_n"}
    usage = {"prompt_tokens": 100, "completion_tokens": 4}

    answer = read(chunk(timings=timings, usage=usage)).finish("ok", 12.0)

    assert (answer.num_prompt_tokens, answer.num_cached, answer.num_prefilled) == (100, 70, 30)


def test_usage_alone_gives_counts_but_no_times() -> None:
    answer = read(chunk({"content": "a"}), chunk(usage=USAGE)).finish("ok", 12.0)

    assert (answer.num_prompt_tokens, answer.num_cached, answer.num_prefilled) == (100, 60, 40)
    assert answer.prefill_ms is None
    assert answer.decode_tokens_per_s is None
    assert answer.num_decoded == 4


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}])
def test_cached_tokens_may_be_unreported(details: dict[str, Any]) -> None:
    answer = read(chunk(usage={"prompt_tokens": 100, **details})).finish("ok", 12.0)

    assert (answer.num_prompt_tokens, answer.num_cached, answer.num_prefilled) == (100, None, None)


def test_a_cancelled_answer_knows_how_far_its_prefill_was() -> None:
    progress = {"total": 100, "cache": 20, "processed": 60, "time_ms": 8.0}
    reader = read(chunk({}, prompt_progress=progress))

    assert reader.prefilled_fraction() == 0.5
    answer = reader.finish("cancelled", 12.0)

    assert (answer.num_prompt_tokens, answer.num_cached, answer.num_prefilled) == (100, 20, 40)
    assert answer.ttft_s is None


def test_a_prompt_that_is_all_cached_is_prefilled_at_once() -> None:
    reader = read(chunk({}, prompt_progress={"total": 9, "cache": 9, "processed": 9, "time_ms": 0}))

    assert reader.prefilled_fraction() == 1.0


def test_tool_calls_and_reasoning_are_put_together() -> None:
    first = {"index": 0, "id": "c1", "function": {"name": "read", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"path":1}'}}
    reader = read(
        chunk({"reasoning_content": "Let me "}),
        chunk({"reasoning_content": "see."}),
        chunk({"tool_calls": [first]}),
        chunk({"tool_calls": [rest]}),
    )

    answer = reader.finish("ok", 15.0)

    assert answer.text == "Let me see."
    assert answer.reply["reasoning_content"] == "Let me see."
    (call,) = answer.reply["tool_calls"]
    assert call["function"] == {"name": "read", "arguments": '{"path":1}'}
    assert call["id"] == "c1"


def test_an_error_event_fails_the_answer() -> None:
    answer = read(chunk({"content": "a"}), {"error": {"message": "engine died"}}).finish("ok", 12.0)

    assert answer.status == "failed"
    assert answer.error == "engine died"


def test_a_line_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        read("data: {broken")
