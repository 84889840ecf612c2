"""The scripts behind the claims on the cache measure what they say, on tiny models and once."""

from pathlib import Path

import pytest
from benchmarks import turn_preparation
from benchmarks.checkpoint_cost import VARIANTS
from benchmarks.report import Row, compare_rows
from benchmarks.request_overhead import make_rows, measure_turns, open_bench
from benchmarks.streaming import TEXT
from benchmarks.workloads.long_conversation import make_body, make_conversation
from tests.models import write_model

from milepost.chat.conversation.conversation import make_conversation as make_checked
from milepost.config import EngineSettings


@pytest.mark.parametrize("num_messages", [60, 290])
def test_a_long_conversation_is_as_long_as_asked_for(num_messages: int) -> None:
    messages = make_conversation("harbour", num_messages, 30_000)
    assert num_messages - 1 <= len(messages) <= num_messages
    assert messages[-1]["role"] in ("user", "tool")
    assert 70_000 < sum(len(message["content"]) for message in messages) < 140_000
    assert len(make_checked(messages).messages) == len(messages)


def test_conversations_differ_by_name_and_by_nothing_else() -> None:
    assert make_conversation("a", 20, 2000) == make_conversation("a", 20, 2000)
    assert make_conversation("a", 20, 2000)[0] != make_conversation("b", 20, 2000)[0]


def test_a_body_always_goes_to_its_limit() -> None:
    assert make_body([], 8) == {
        "messages": [],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }


def test_rows_are_compared_in_percent_repeat_by_repeat() -> None:
    above, below = Row("a", "s", (1.02, 3.0)), Row("b", "s", (1.0, 4.0))
    assert compare_rows("more", above, below).values == pytest.approx((2.0, -25.0))


def test_the_default_comes_first_and_all_others_keep_less() -> None:
    assert [bool(flags) for flags in VARIANTS.values()] == [False, True, True]


def test_the_parts_of_a_request_add_up(tmp_path: Path) -> None:
    model = write_model("hybrid", tmp_path / "tiny.gguf")
    settings = EngineSettings(model_path=str(model), ctx_size=4096, parallel=2, threads=1)
    with open_bench(settings) as bench:
        times = measure_turns(bench, make_conversation("harbour", 12, 600), repeats=2)
    assert len(times) == 2
    rows = {row.name: row.values for row in make_rows(times)}
    assert all(value > 0 for values in rows.values() for value in values)
    counted = (
        "front end",
        "socket",
        "engine, before the first batch",
        "engine, between and after batches",
    )
    assert rows["overhead"][0] == pytest.approx(sum(rows[name][0] for name in counted))


def test_replies_of_prepared_turns_come_back_exact(tmp_path: Path) -> None:
    model = turn_preparation.load_model(write_model("full", tmp_path / "tiny.gguf"))
    conversation = make_conversation("harbour", 12, 600)
    times = turn_preparation.measure_turns(model, conversation, repeats=3)
    model.close()
    assert [each.num_exact for each in times] == [2, 3, 4]
    assert all(each.rendering_ms > 0 and each.preparation_ms > 0 for each in times)


@pytest.mark.parametrize(
    ("line", "has_text"),
    [
        (b'{"delta":{"role":"assistant","content":""}}', False),
        (b'{"delta":{"role":"assistant","content":null}}', False),
        (b'{"delta":{"content":" word"}}', True),
        (b'{"delta":{"content": "\\"quoted"}}', True),
    ],
)
def test_a_stream_begins_with_its_first_text(line: bytes, has_text: bool) -> None:
    assert bool(TEXT.search(line)) == has_text
