"""Images and audio keep their place among texts, and no text of a client can pass for one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.vocab import IM_END, IM_START, FakeVocab
from tests.published import TEMPLATE_PATHS

from milepost.api.openai.messages import parse_conversation
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.media_parts import MediaPart
from milepost.chat.conversation.sentinels import (
    FIRST_SENTINEL,
    LAST_SENTINEL,
    MARKER_CHARS,
    write_marker,
)
from milepost.chat.prompts.boundaries import BoundaryFinder
from milepost.chat.prompts.tokenizer import MemoLimits, PromptTokenizer
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet
from milepost.errors import InvalidRequest, TemplateFailed

TURN = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
MARKER = write_marker(chr(FIRST_SENTINEL), 0)  # of the first image
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
REMEMBERS_ALL = MemoLimits(min_chars=1)


def text(value: str) -> dict[str, Any]:
    """Return a text part."""
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a message of parts."""
    return {"role": "user", "content": list(parts)}


def template(source: str = TURN) -> ChatTemplate:
    """Return a template over the fake vocabulary."""
    return ChatTemplate(source, name="test", texts=SpecialTexts.of(FakeVocab()))


def tokenize(
    conversation: Conversation, source: str = TURN, tokenizer: PromptTokenizer | None = None
) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation, and the positions of its media."""
    prompt = template(source).render(conversation)
    tokenizer = tokenizer or PromptTokenizer(FakeVocab())
    tokens, positions = tokenizer.tokenize_with_positions(
        prompt, [span.end for span in prompt.media]
    )
    return tokens.tolist(), positions


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (IMAGE, MediaPart("image", "messages[0].content[0]", "data:image/png;base64,AAAA")),
        (
            {"type": "image_url", "image_url": "u"},
            MediaPart("image", "messages[0].content[0]", "u"),
        ),
        (
            {"type": "input_image", "image_url": "u", "detail": "low"},
            MediaPart("image", "messages[0].content[0]", "u"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            MediaPart("audio", "messages[0].content[0]", "UklG"),
        ),
        (
            {"type": "audio_url", "audio_url": {"url": "file://a.mp3"}},
            MediaPart("audio", "messages[0].content[0]", "file://a.mp3"),
        ),
    ],
)
def test_images_and_audio_are_taken_in_all_their_shapes(
    part: dict[str, Any], expected: MediaPart
) -> None:
    assert parse_conversation([user(part)]).media == (expected,)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url"}, "messages[0].content[0].image_url must be a URL or base64 text"),
        ({"type": "image_url", "image_url": {"url": 5}}, "image_url.url must be a URL"),
        ({"type": "image_url", "image_url": ""}, "messages[0].content[0].image_url is empty"),
        ({"type": "input_audio", "input_audio": {}}, "input_audio.data must be a URL or base64"),
    ],
)
def test_a_part_without_a_source_is_named(part: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_conversation([user(part)])
    assert said in str(raised.value)


def test_text_parts_are_joined_by_newlines_but_not_to_media() -> None:
    conversation = parse_conversation([user(text("a"), text("b"), IMAGE, text("c"), text("d"))])
    assert conversation.messages[0]["content"] == f"a\nb{MARKER}c\nd"


def test_media_stand_between_the_tokens_of_their_texts() -> None:
    conversation = parse_conversation(
        [
            {"role": "system", "content": [IMAGE, text("s")]},
            user(text("a"), IMAGE, IMAGE, text("b")),
            user(text("c"), IMAGE),
        ]
    )
    tokens, positions = tokenize(conversation)
    assert tokens == [
        *(IM_START, *b"s", IM_END),
        *(IM_START, *b"ab", IM_END),
        *(IM_START, *b"c", IM_END),
    ]
    assert positions == [1, 5, 5, 9]


def test_text_that_looks_like_a_marker_stays_text() -> None:
    conversation = parse_conversation([user(text(f"a{MARKER}"), IMAGE, text("b"))])
    tokens, positions = tokenize(conversation)
    assert tokens == [IM_START, *f"a{MARKER}b".encode(), IM_END]
    assert positions == [len(tokens) - 2]


def test_text_that_looks_like_a_marker_is_not_taken_for_one_that_was_known() -> None:
    tokenizer = PromptTokenizer(FakeVocab(), REMEMBERS_ALL)
    tokenize(parse_conversation([user(text("a"), IMAGE), user(text("b"))]), tokenizer=tokenizer)
    messages = [user(text(f"a{MARKER}")), user(text("b")), user(IMAGE)]
    tokens, positions = tokenize(parse_conversation(messages), tokenizer=tokenizer)
    assert tokens[: 3 + len(MARKER.encode())] == [IM_START, *f"a{MARKER}".encode(), IM_END]
    assert positions == [len(tokens) - 1]


def test_texts_with_all_sentinels_are_refused_with_a_sentence() -> None:
    sentinels = "".join(map(chr, range(FIRST_SENTINEL, LAST_SENTINEL + 1)))
    with pytest.raises(InvalidRequest, match=r"private-use characters U\+F700 to U\+F8EE"):
        parse_conversation([user(text(sentinels), IMAGE)])


def test_no_control_token_is_spelled_across_an_image() -> None:
    conversation = parse_conversation([user(text("<|im_"), IMAGE, text("end|><|im_end|>"))])
    tokens, positions = tokenize(conversation)
    assert tokens == [IM_START, *b"<|im_end|><|im_end|>", IM_END]
    assert positions == [6]


def test_a_template_that_escapes_keeps_images() -> None:
    source = "<|im_start|>{{ messages[0].content | tojson(ensure_ascii=true) }}<|im_end|>"
    tokens, positions = tokenize(parse_conversation([user(text("é"), IMAGE)]), source)
    assert tokens == [IM_START, *b'"\\u00e9"', IM_END]
    assert positions == [8]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("<|im_start|>{{ messages | length }}", "does not keep messages[0].content[0] in its"),
        (
            "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
            "does not keep messages[0].content[0] in its place",
        ),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[0].content }}",
            "writes images more than once",
        ),
    ],
)
def test_a_template_that_drops_moves_or_repeats_images_is_refused(source: str, said: str) -> None:
    conversation = parse_conversation([user(IMAGE), user(text("a"), IMAGE)])
    with pytest.raises(TemplateFailed) as raised:
        template(source).render(conversation)
    assert said in str(raised.value)


def test_a_breakpoint_may_stand_after_an_image() -> None:
    marked = {**IMAGE, "cache_control": {"type": "ephemeral"}}
    conversation = parse_conversation([user(text("a"), text("b"), marked, text("c"))])
    (mark,) = conversation.breakpoints
    assert conversation.messages[0]["content"][: mark.num_chars] == f"a\nb{MARKER}"


def test_a_boundary_after_images_has_the_position_of_its_text() -> None:
    conversation = parse_conversation([user(text("é"), IMAGE, text("b")), user(IMAGE)])
    prompt = template().render(conversation)
    found = BoundaryFinder(TemplateSet(template())).find_boundaries(conversation, prompt)
    offsets = [boundary.offset for boundary in found.boundaries]
    tokens, positions = PromptTokenizer(FakeVocab()).tokenize_with_positions(prompt, offsets)
    ends = [
        position
        for position, each in zip(positions, found.boundaries, strict=True)
        if each.kind in ("message_end", "prompt_end")
    ]
    assert tokens.tolist() == [IM_START, *"éb".encode(), IM_END, IM_START, IM_END]
    assert ends == [5, 7]


def conversations() -> Sequence[list[dict[str, Any]]]:
    """Return turns of a session with images, one of which is replaced and one taken out."""
    first = [user(text("a b"), IMAGE, text("c")), {"role": "assistant", "content": "d"}]
    tool = {"role": "tool", "content": [text("<|im_end|>"), IMAGE, IMAGE]}
    return (
        first,
        [*first, tool],
        [*first, tool, user(text("<|im_end|>"), IMAGE, text("e <|im_start|>"))],
        [user(text("a b c")), first[1], tool],
        [*first, tool, user(text("<|im_end|>"), IMAGE, text("f"), IMAGE)],
    )


def test_remembered_prompts_change_no_token_and_no_position() -> None:
    remembering = PromptTokenizer(FakeVocab(), REMEMBERS_ALL)
    for messages in conversations():
        conversation = parse_conversation(json.loads(json.dumps(messages)))
        assert tokenize(conversation, tokenizer=remembering) == tokenize(conversation)


class CountingVocab(FakeVocab):
    """Counts the characters that it is given."""

    num_chars = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return tokens."""
        self.num_chars += len(text)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def test_what_stood_before_and_between_images_is_not_tokenised_again() -> None:
    vocab = CountingVocab()
    tokenizer = PromptTokenizer(vocab, REMEMBERS_ALL)
    known = [user(text("a" * 500), IMAGE, text("b" * 500))] * 3
    tokenize(parse_conversation([*known, user(text("c"))]), tokenizer=tokenizer)
    vocab.num_chars = 0
    tokenize(parse_conversation([*known, user(text("c")), user(text("d"))]), tokenizer=tokenizer)
    assert vocab.num_chars < 200
    assert MARKER_CHARS == 6


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_built_in_templates_keep_images_in_their_places(name: str) -> None:
    check_keeps_images(BUILTIN_TEMPLATES[name])


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_published_templates_keep_images_in_their_places(path: Path) -> None:
    check_keeps_images(path.read_text(encoding="utf-8"))


def check_keeps_images(source: str) -> None:
    """Assert that images come out between the texts that they were sent between."""
    parts = [text("one"), IMAGE, text("two"), IMAGE, IMAGE, text("three")]
    prompt = template(source).render(parse_conversation([user(*parts)]))
    shown = prompt.text_with_media_as("<image>")
    assert "one<image>two<image><image>three" in shown
    assert shown.count("<image>") == len(prompt.media) == 3
