"""The small marked conversations that probing renders, and what is read of their prompts.

All that is asked of a template goes through `Probe`, which never raises: what a template refuses
is None. Each text of a conversation is a word that no template contains, so that what a template
writes can be told from what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.chat.conversation.conversation import Conversation, Message, make_conversation
from milepost.errors import TemplateFailed

# Renders a conversation with or without generation prompt and with further variables; raises
# TemplateFailed when the template refuses it.
Render = Callable[[Conversation, bool, Mapping[str, Any]], str]

SYSTEM, USER, LATER_USER = "mpsystem", "mpuser", "mplater"
ANSWER, LATER_ANSWER, REASONING = "mpanswer", "mpsecond", "mpthought"
RESULT, LATER_RESULT = "mpresult", "mpoutput"
NAMES = ("mptoola", "mptoolb")
IDS = ("mpcall0aa", "mpcall1bb")  # nine letters and digits, as Mistral's templates demand
LONG_ID = "mpcall_with_a_long_id"  # as most clients make them
KEYS = (("mpkeya", "mpkeyb"), ("mpkeyc", "mpkeyd"))
OTHER_VALUES = (470011, 470022)
VALUES = (("mpvala", "mpvalb"), ("mpvalc", "mpvald"))


def system(text: str = SYSTEM) -> Message:
    """Return a system message."""
    return {"role": "system", "content": text}


def user(text: str = USER) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def answer(text: str = ANSWER, **fields: Any) -> Message:
    """Return an assistant message."""
    return {"role": "assistant", "content": text, **fields}


def calling(*calls: Message, text: str = "", **fields: Any) -> Message:
    """Return an assistant message with tool calls."""
    return {"role": "assistant", "content": text, **fields, "tool_calls": list(calls)}


def call(
    number: int, arguments: Mapping[str, Any] | str | None = None, call_id: str = ""
) -> Message:
    """Return one of the two tool calls; its arguments are two texts unless others are given."""
    if arguments is None:
        arguments = dict(zip(KEYS[number], VALUES[number], strict=True))
    function = {"name": NAMES[number], "arguments": arguments}
    return {"type": "function", "function": function, "id": call_id or IDS[number]}


def result(number: int = 0) -> Message:
    """Return the result of one of the two tool calls."""
    text = (RESULT, LATER_RESULT)[number]
    return {"role": "tool", "content": text, "name": NAMES[number], "tool_call_id": IDS[number]}


OTHER_CALL = call(0, dict(zip(KEYS[0], OTHER_VALUES, strict=True)))


def _tool(number: int) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": "A text."} for key in KEYS[number]}
    parameters = {"type": "object", "properties": properties, "required": list(KEYS[number])}
    function = {"name": NAMES[number], "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [_tool(0), _tool(1)]


class Probe:
    """A template that questions are put to, rendered with in one way."""

    def __init__(
        self,
        source: str,
        render: Render,
        controls: Iterable[str] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.controls = frozenset(controls)  # how the model's control tokens are spelled
        self._render = render
        self._variables = variables or {}  # of every rendering

    def with_variables(self, variables: Mapping[str, Any]) -> Probe:
        """Return a probe of the same template that is always given these variables."""
        return Probe(self.source, self._render, self.controls, variables)

    def ask(self, conversation: Conversation, *, add_generation_prompt: bool) -> str | None:
        """Return what becomes of a conversation, which is taken as it is."""
        return self._try_render(conversation, add_generation_prompt, {})

    def prompt(self, *messages: Message, tools: bool = False, **variables: Any) -> str | None:
        """Return the prompt of a conversation with its generation prompt."""
        return self._try_render(_conversation(messages, tools), True, variables)

    def history(self, *messages: Message, tools: bool = False, **variables: Any) -> str | None:
        """Return the text of a conversation without a generation prompt."""
        return self._try_render(_conversation(messages, tools), False, variables)

    def generation(self, **variables: Any) -> str:
        """Return what stands after the text of the last user message; empty if that fails."""
        return text_after(self.prompt(user(), **variables), USER) or ""

    def _try_render(
        self, conversation: Conversation, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str | None:
        try:
            return self._render(
                conversation, add_generation_prompt, {**self._variables, **variables}
            )
        except TemplateFailed:
            return None


@dataclass(frozen=True, slots=True)
class CallTexts:
    """Replies with tool calls, from after the generation prompt on."""

    one: str  # one call, up to its result
    two: str | None  # two calls, up to the first result; None where a template takes only one
    last: str  # one call at the end of a conversation
    other: str  # one call with values that are no strings
    trailers: tuple[str, ...]  # tags that end a message, or begin the next


def text_after(text: str | None, marker: str) -> str | None:
    """Return what follows the last place of a marker, None if there is none."""
    if text is None or marker not in text:
        return None
    return text[text.rindex(marker) + len(marker) :]


def between(text: str | None, marker: str, following: str) -> str | None:
    """Return what stands between the last place of a marker and the next of another, or None."""
    rest = text_after(text, marker)
    if rest is None or following not in rest:
        return None
    return rest[: rest.index(following)]


def _conversation(messages: tuple[Message, ...], tools: bool) -> Conversation:
    return make_conversation(list(messages), TOOLS if tools else None)
