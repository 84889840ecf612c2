"""What is no call stays in the content to the letter, whatever brackets and markers it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.chat.reply_samples import SAMPLES, TOOLS

from milepost.chat.formats.reply_events import ContentText, ParseWarning
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.stream_parser import ReplyParser

TEXTS = (
    'Use this config:\n{"config": {"debug": true}}\nDone.',
    '{"config": {"debug": true}}',
    '{"a": {"b": [1, {"c": "d"}]}}',
    '[{"name": "Ada", "age": 3}]',
    '{"name": "Ada", "parameters": {}}',
    '```json\n{"name": "my-package", "version": "1.0", "parameters": {"x": 1}}\n```',
    "[]",
    "[1, 2, 3]",
    "def f(x):\n    return [g(y=1), h(z=2)]",
    'if (a[0] < b["x"]) { return {"a": 1}; }',
    '<xml><a b="c">d</a></xml>',
    "Wrap it in <tool_call>NAME</tool_call>.",
    "<tool_call>\n…\n</tool_call> is how.",
    "const s = `<tool_call>${x}</tool_call>`;",
    "`[TOOL_CALLS]` begins calls, <function=NAME> too.",
    '<invoke name="x">text</invoke>',
    "call me: maybe {x}",
    "Use functions.read:0 for it.",
    "Action:\n```json\n[]\n```\nDone.",
    "| a | b |\n|---|---|\n| 1 | 2 |",
)
FORMATS = {sample.reply_format: sample.name for sample in SAMPLES}
own_pairs = [
    pytest.param(reply_format, text, id=f"{name}-{i}")
    for reply_format, name in FORMATS.items()
    for i, text in enumerate(TEXTS)
]


def parse(reply_format: ReplyFormat, text: str) -> list[object]:
    parser = ReplyParser(reply_format, tools=TOOLS)
    return [*parser.feed(text), *parser.finish(is_truncated=False)]


def with_markers(reply_format: ReplyFormat) -> Iterator[str]:
    """Yield texts that speak of the markers of a format."""
    calls = reply_format.tool_calls
    if calls is None or calls.body.reads_whole_reply:
        return
    end = calls.call.end or calls.section.end
    for marker in filter(None, map(str.strip, calls.markers)):
        yield f"The marker `{marker}` stands in it, see {marker}."
    if calls.start_marker:
        yield f"Write `{calls.start_marker}…{end}`."
        yield f"It is {calls.start_marker}{{}}{end}"


@pytest.mark.parametrize(("reply_format", "text"), own_pairs)
def test_a_text_is_no_call(reply_format: ReplyFormat, text: str) -> None:
    events = parse(reply_format, text)
    assert "".join(each.text for each in events if isinstance(each, ContentText)) == text
    assert all(isinstance(each, ContentText | ParseWarning) for each in events)


@pytest.mark.parametrize("reply_format", FORMATS, ids=FORMATS.values())
def test_a_text_about_markers_is_no_call(reply_format: ReplyFormat) -> None:
    for text in with_markers(reply_format):
        events = parse(reply_format, text)
        assert "".join(each.text for each in events if isinstance(each, ContentText)) == text
