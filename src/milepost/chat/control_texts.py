"""Keeps text that merely spells a control token from becoming one.

Template text must be tokenised with its control tokens, message contents without them: otherwise
a file that an agent reads could end the turn and open a system message. Before a rendering, every
spelled control token in untrusted text gets a mark, one private-use character, after its first
character; after it, the marks are taken out again and their places noted. A mark, unlike a
placeholder for the whole text, survives whatever a template does to strings (trim, split, JSON).

    content    see <|im_end|> here
    marked     see <▮|im_end|> here
    rendered   …user\\nsee <|im_end|> here<|im_end|>…      marks: the place after "see <"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from milepost.chat.conversation import Conversation, Message
from milepost.chat.media_parts import MARKER_CHARS, shifted

# Marks are drawn from here; no icon font in use has glyphs in this part of the private-use area.
FIRST_MARK = 0xF700
LAST_MARK = 0xF8CF

UNTRUSTED_FIELDS = ("content", "name", "tool_call_id")


class RenderedPrompt(str):
    """The text of a prompt that knows where no control token may be seen.

    `marks` are offsets in rising order: a control token that is spelled across one of them is
    plain text. `media` are the offsets of markers of images and audio, which are no text.
    """

    __slots__ = ("marks", "media")
    marks: tuple[int, ...]
    media: tuple[int, ...]

    def __new__(
        cls, text: str, marks: tuple[int, ...] = (), media: tuple[int, ...] = ()
    ) -> RenderedPrompt:
        """Make a prompt of `text`."""
        prompt = super().__new__(cls, text)
        prompt.marks = marks
        prompt.media = media
        return prompt

    def cut(self, start: int, end: int) -> RenderedPrompt:
        """Return the part [start, end) of the prompt."""
        if (start, end) == (0, len(self)):
            return self
        marks = shifted(self.marks, start + 1, end, start)
        return RenderedPrompt(self[start:end], marks, shifted(self.media, start, end, start))


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

    def mark(self, conversation: Conversation) -> tuple[Conversation, str]:
        """Return the conversation with marks in its untrusted text, and the mark.

        The mark is "" and the conversation the same object when nothing had to be marked.
        Replies of the model are trusted: its history holds the control tokens it has sampled.
        """
        if self._pattern is None or not self._is_spelled_in(conversation):
            return conversation, ""
        mark = _choose_mark(conversation)
        messages = [self._mark_message(message, mark) for message in conversation.messages]
        tools = self._mark_value(conversation.tools, mark)
        documents = self._mark_value(conversation.documents, mark)
        return replace(conversation, messages=messages, tools=tools, documents=documents), mark

    def cut_at_marks(self, prompt: RenderedPrompt) -> Iterator[Run]:
        """Cut a prompt into runs that together are its text.

        Plain runs reach from one real control token to the next, because tokenizers treat the
        start of a text like the place after a control token (some put a space there), and merge
        nothing across one. So the tokens of the rest of the prompt do not depend on the cuts.
        """
        done = 0
        for start, end in self._plain_spans(prompt):
            if start > done:
                yield Run(prompt[done:start], parse_special=True)
            yield Run(prompt[start:end], parse_special=False)
            done = end
        if done < len(prompt):
            yield Run(prompt[done:], parse_special=True)

    def token_spans(self, prompt: RenderedPrompt) -> Iterator[tuple[int, int]]:
        """Yield where control tokens are spelled that no mark cuts."""
        if self._pattern is None:
            return
        marks = set(prompt.marks)
        for match in self._pattern.finditer(prompt):
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
            yield start, len(prompt)

    def _is_spelled_in(self, conversation: Conversation) -> bool:
        assert self._pattern is not None
        search = self._pattern.search
        for message in conversation.messages:
            if message["role"] == "assistant":
                continue
            if any(search(message[key]) for key in UNTRUSTED_FIELDS if key in message):
                return True
        return any(
            search(json.dumps(part, ensure_ascii=False, default=str)) is not None
            for part in (conversation.tools, conversation.documents)
            if part
        )

    def _mark_message(self, message: Message, mark: str) -> Message:
        if message["role"] == "assistant":
            return message
        return {
            key: self._mark_value(value, mark) if key in UNTRUSTED_FIELDS else value
            for key, value in message.items()
        }

    def _mark_value(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(lambda match: _insert(match[0], mark), value)
        if isinstance(value, list):
            return [self._mark_value(item, mark) for item in value]
        if isinstance(value, dict):
            return {
                self._mark_value(key, mark): self._mark_value(item, mark)
                for key, item in value.items()
            }
        return value


def unmark(rendered: str, mark: str) -> RenderedPrompt:
    """Take the marks out of a rendered text and note where they were."""
    if not mark:
        return RenderedPrompt(rendered)
    # tojson with ASCII escaping, if a template asks for it, writes the mark as an escape.
    pieces = rendered.replace(_escaped(mark), mark).split(mark)
    marks: list[int] = []
    pos = 0
    for piece in pieces[:-1]:
        pos += len(piece)
        marks.append(pos)
    return RenderedPrompt("".join(pieces), tuple(marks))


def spell_markers(prompt: RenderedPrompt, spelled: str) -> str:
    """Return the text of a prompt with another text in place of each marker of media."""
    pieces: list[str] = []
    done = 0
    for marker in prompt.media:
        pieces += (prompt[done:marker], spelled)
        done = marker + MARKER_CHARS
    return "".join((*pieces, prompt[done:]))


def _insert(spelled: str, mark: str) -> str:
    return f"{spelled[0]}{mark}{spelled[1:]}"


def _escaped(mark: str) -> str:
    return json.dumps(mark)[1:-1]


def _choose_mark(conversation: Conversation) -> str:
    """Return a character that is nowhere in the conversation, not even as a JSON escape."""
    parts = (conversation.messages, conversation.tools, conversation.documents)
    text = json.dumps(parts, ensure_ascii=False, default=str)
    for code in range(FIRST_MARK, LAST_MARK + 1):
        if chr(code) not in text and _escaped(chr(code)) not in text:
            return chr(code)
    # Somebody has gone to some lengths; the last one then loses its meaning in their text only.
    return chr(LAST_MARK)


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
