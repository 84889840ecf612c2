"""Keeps text that merely spells a control token from becoming one.

Template text must be tokenised with its control tokens, message contents without them: otherwise
a file that an agent reads could end the turn and open a system message. That goes for replies too:
those that were sampled here have their tokens (`reply_matching`), all others may be anybody's text,
or a model's that wrote about control tokens. Only in the content of a reply the markers of
reasoning and calls stay what they are: clients that parse replies themselves send them back so.

Before a rendering, every spelled control token in untrusted text gets a mark, one sentinel, after
its first character; after it, the marks are taken out again and their places noted. A mark, unlike
a placeholder for the whole text, survives whatever a template does to strings (trim, split, JSON).

    content    see <|im_end|> here
    marked     see <▮|im_end|> here
    rendered   …user\\nsee <|im_end|> here<|im_end|>…      marks: the place after "see <"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.conversation.sentinels import (
    LAST_SENTINEL,
    choose_sentinel,
    strings_in,
    unescape_sentinel,
)

UNTRUSTED_FIELDS = ("content", "reasoning_content", "name", "tool_call_id")
MARKED_FIELDS = (*UNTRUSTED_FIELDS, "tool_calls")


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a prompt; in one that is not `parse_special`, control tokens are plain text."""

    text: str
    parse_special: bool


class ControlTexts:
    """How the control tokens of a vocabulary are spelled."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        # One character cannot be marked inside, and is no markup that text would imitate.
        self.spelled = sorted({text for text in texts if len(text) > 1})
        self._pattern = re.compile(_trie_pattern(self.spelled)) if self.spelled else None

    def mark_control_texts(
        self, conversation: Conversation, find_markers: Callable[[], Container[str]] = frozenset
    ) -> tuple[Conversation, str]:
        """Return the conversation with marks in its untrusted text, and the mark.

        The mark is "" and the conversation the same object when nothing had to be marked.
        `find_markers` returns the control texts that are trusted in the content of replies.
        """
        if self._pattern is None or not self._is_spelled_in(conversation):
            return conversation, ""
        parts = (conversation.messages, conversation.tools, conversation.documents)
        # Somebody may have written all of them; the last one then loses its meaning in their text.
        mark = choose_sentinel(*parts) or chr(LAST_SENTINEL)
        markers = find_markers()
        marked = replace(
            conversation,
            messages=[self._mark_message(each, mark, markers) for each in conversation.messages],
            tools=self._mark_value(conversation.tools, mark),
            documents=self._mark_value(conversation.documents, mark),
            argument_texts=self._mark_value(dict(conversation.argument_texts), mark),
        )
        return marked, mark

    def find_in(self, texts: Iterable[str]) -> frozenset[str]:
        """Return the control texts that are spelled in any of the texts."""
        if self._pattern is None:
            return frozenset()
        return frozenset(match[0] for text in texts for match in self._pattern.finditer(text))

    def cut_at_marks(self, prompt: RenderedPrompt) -> Iterator[Run]:
        """Cut a prompt into runs that together are its text.

        Plain runs reach from one real control token to the next, because tokenizers treat the
        start of a text like the place after a control token (some put a space there), and merge
        nothing across one. So the tokens of the rest of the prompt do not depend on the cuts.
        """
        done = 0
        for start, end in self._plain_spans(prompt):
            if start > done:
                yield Run(prompt.text[done:start], parse_special=True)
            yield Run(prompt.text[start:end], parse_special=False)
            done = end
        if done < len(prompt.text):
            yield Run(prompt.text[done:], parse_special=True)

    def token_spans(self, prompt: RenderedPrompt) -> Iterator[tuple[int, int]]:
        """Yield where control tokens are spelled that no mark cuts."""
        if self._pattern is None:
            return
        marks = set(prompt.marks)
        for match in self._pattern.finditer(prompt.text):
            if not marks or marks.isdisjoint(range(match.start() + 1, match.end())):
                yield match.span()

    def seam_before(self, prompt: RenderedPrompt, offset: int, max_chars: int) -> int:
        """Return the end of the last control token before an offset, if it is that close.

        Otherwise the offset itself, as where a control token begins: nothing is merged there.
        """
        seam = offset
        for start, end in self.token_spans(prompt):
            if start >= offset:
                return offset if start == offset else seam
            if offset - max_chars <= end <= offset:
                seam = end
        return seam

    def _plain_spans(self, prompt: RenderedPrompt) -> Iterator[tuple[int, int]]:
        marks = iter(prompt.marks)
        mark = next(marks, None)
        start = 0
        for token_start, token_end in self.token_spans(prompt):
            if mark is None:
                return
            if mark <= token_start:
                yield start, token_start
                while mark is not None and mark <= token_start:
                    mark = next(marks, None)
            start = token_end
        if mark is not None:
            yield start, len(prompt.text)

    def _is_spelled_in(self, conversation: Conversation) -> bool:
        assert self._pattern is not None
        search = self._pattern.search
        for i, message in enumerate(conversation.messages):
            if any(search(message[key]) for key in UNTRUSTED_FIELDS if key in message):
                return True
            if "tool_calls" in message and any(map(search, _call_strings(conversation, i))):
                return True
        others = (conversation.tools, conversation.documents)
        return any(map(search, strings_in(others)))

    def _mark_message(self, message: Message, mark: str, markers: Container[str]) -> Message:
        trusted = markers if message["role"] == "assistant" else ()
        return {
            key: self._mark_value(value, mark, trusted if key == "content" else ())
            if key in MARKED_FIELDS
            else value
            for key, value in message.items()
        }

    def _mark_value(self, value: Any, mark: str, trusted: Container[str] = ()) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(
                lambda match: match[0] if match[0] in trusted else _insert(match[0], mark), value
            )
        if isinstance(value, list):
            return [self._mark_value(item, mark) for item in value]
        if isinstance(value, dict):
            return {
                self._mark_value(key, mark): self._mark_value(item, mark)
                for key, item in value.items()
            }
        return value


def unmark_control_texts(rendered: str, mark: str) -> RenderedPrompt:
    """Take the marks out of a rendered text and note where they were."""
    if not mark:
        return RenderedPrompt.of_trusted(rendered)
    texts = unescape_sentinel(rendered, mark).split(mark)
    marks = tuple(accumulate(len(text) for text in texts[:-1]))
    return RenderedPrompt("".join(texts), marks)


def _call_strings(conversation: Conversation, index: int) -> Iterator[str]:
    """Yield all strings in the tool calls of a message; the JSON text where that has no escapes."""
    for j, call in enumerate(conversation.messages[index]["tool_calls"]):
        text = conversation.argument_texts.get((index, j), "\\")
        yield from (text,) if "\\" not in text else strings_in(call["function"]["arguments"])
        yield call["function"]["name"]
        yield call.get("id", "")


def _insert(spelled: str, mark: str) -> str:
    return f"{spelled[0]}{mark}{spelled[1:]}"


def _trie_pattern(texts: list[str]) -> str:
    """Return a pattern for any of the texts, the longest where several fit.

    `texts` are sorted and unique. Vocabularies have up to a thousand control tokens with the same
    first characters, and a flat alternation tries each of them at every such character.
    """
    branches: list[str] = []
    is_optional = False
    start = 0
    while start < len(texts):
        if not texts[start]:
            is_optional = True
            start += 1
            continue
        first = texts[start][0]
        end = start
        while end < len(texts) and texts[end][:1] == first:
            end += 1
        branches.append(re.escape(first) + _trie_pattern([text[1:] for text in texts[start:end]]))
        start = end
    if not branches:
        return ""
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if is_optional else pattern
