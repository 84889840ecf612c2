"""One chat template: a `Conversation` in, the text of a prompt out.

Compiles once, finds the template's needs by probing, and renders without copying contents. Any
failure of a template is a `TemplateFailed`; none takes the server down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import Any

import jinja2

from milepost.chat.conversation.control_texts import ControlTexts, unmark
from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.rendered_prompt import RenderedPrompt, media_span
from milepost.chat.conversation.sentinels import find_markers, unescape_sentinel
from milepost.chat.formats.probe_texts import Probe
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.templates.environment import RaisedByTemplate, TemplateEnvironment
from milepost.chat.templates.fact_probe import probe_facts
from milepost.chat.templates.message_forms import (
    ArgumentForm,
    TemplateTraits,
    adapt_messages,
    wrap_arguments,
)
from milepost.chat.templates.profile import TemplateFacts, ToolFallback
from milepost.chat.templates.reply_probe import probe_reply_format
from milepost.chat.templates.tool_fallback import (
    choose_calls,
    needs_fallback,
    plan_tool_fallback,
    read_default_system,
    write_tools,
)
from milepost.chat.templates.trait_probe import find_image_text, probe_traits
from milepost.chat.vocab import Vocab
from milepost.errors import ConfigurationError, InvalidRequest, TemplateFailed

GENERATION = "add_generation_prompt"
RESERVED_VARIABLES = ("messages", "tools", "bos_token", "eos_token", GENERATION)
QUESTION: Message = {"role": "user", "content": "question"}
ANSWER: Message = {"role": "assistant", "content": "answer"}
MAX_QUOTED_CHARS = 500  # of a template's own message; arbitrary


@dataclass(frozen=True, slots=True)
class SpecialTexts:
    """How a vocabulary spells what templates write and contents must not."""

    bos: str = ""
    eos: str = ""
    controls: ControlTexts = field(default_factory=ControlTexts)

    @classmethod
    def of(cls, vocab: Vocab) -> SpecialTexts:
        """Return the special texts of a vocabulary."""
        return cls(vocab.bos_text, vocab.eos_text, ControlTexts(vocab.control_texts()))


class ChatTemplate:
    """A compiled chat template.

    `name` says in messages where the template comes from. Raises ConfigurationError when the
    source is no valid template.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        texts: SpecialTexts | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.name = name
        self._texts = texts or SpecialTexts()
        self._now = now
        self._template = _compile(source, name, now)
        self._traits = probe_traits(source, self._try_render)
        self._arguments = self._traits.arguments

    @property
    def traits(self) -> TemplateTraits:
        """What the template wants to be different from the usual."""
        return self._traits

    @cached_property
    def _probe(self) -> Probe:
        return Probe(self.source, self._render_or_none, self.controls.spelled)

    @cached_property
    def _shown_format(self) -> ReplyFormat:
        return probe_reply_format(self._probe)

    @cached_property
    def _tool_fallback(self) -> ToolFallback | None:
        return plan_tool_fallback(self._probe, self._shown_format)

    @cached_property
    def reply_format(self) -> ReplyFormat:
        """How the model writes its replies; learnt from forty small renderings when asked."""
        return choose_calls(self._shown_format, self._tool_fallback)

    @cached_property
    def facts(self) -> TemplateFacts:
        """What the template does with conversations; learnt like `reply_format`."""
        image_text = find_image_text(self._try_render)
        return probe_facts(
            self._probe, self._traits, self.reply_format, self._tool_fallback, image_text
        )

    @cached_property
    def reply_markers(self) -> frozenset[str]:
        """The control texts that may stand in the content of any reply.

        Those of the markers of reasoning and calls, without the ones that frame messages.
        """
        turns = Conversation([QUESTION, ANSWER, QUESTION])
        frames = self._render_or_none(turns, False, {}) or ""
        found = self.controls.find_in(self.reply_format.markers)
        return found - self.controls.find_in([frames])

    @property
    def controls(self) -> ControlTexts:
        """How control tokens are spelled in its prompts."""
        return self._texts.controls

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return the text of the prompt; what `tool_fallback` finds missing is written into it.

        `kwargs` are further variables of the template; llama-server's `enable_thinking` (true),
        `date_string` and `datetime` have values when they are not among them.

        Raises TemplateFailed with the template's own message, or InvalidRequest when `kwargs`
        would replace the conversation.
        """
        kwargs = kwargs or {}
        check_kwargs(kwargs)
        try:
            marked, mark = self.controls.mark(conversation, lambda: self.reply_markers)
        except RecursionError as error:
            raise TemplateFailed(
                "tools, or arguments of tool calls, that hold the text of a control token are "
                "nested too deeply; send a simpler value",
                param="messages",
            ) from error
        shown = self._show_tools(marked, kwargs) if needs_fallback(marked) else marked
        text = self._render_as_given(shown, add_generation_prompt, kwargs)
        if not conversation.media:
            return unmark(text, mark)
        text = unescape_sentinel(text, conversation.sentinel)
        return self._note_media(unmark(text, mark), conversation)

    def _show_tools(self, conversation: Conversation, kwargs: Mapping[str, Any]) -> Conversation:
        fallback, calls = self._tool_fallback, self.reply_format.tool_calls
        if fallback is None or calls is None:
            return conversation
        return write_tools(
            conversation,
            calls,
            fallback,
            lambda: read_default_system(self._render_or_none, kwargs),
        )

    def _render_as_given(
        self, conversation: Conversation, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        variables = self._variables(conversation, kwargs)
        variables[GENERATION] = add_generation_prompt
        no_tools: list[Any] | None = [] if self._traits.takes_empty_tools else None
        variables["tools"] = conversation.tools or no_tools
        if conversation.documents is not None or "documents" not in variables:
            variables["documents"] = conversation.documents
        return _without_surrogates(self._render_messages(conversation, variables))

    def _note_media(self, prompt: RenderedPrompt, conversation: Conversation) -> RenderedPrompt:
        """Note where the markers of media stand, which templates must neither drop nor move."""
        markers = list(find_markers(prompt.text, conversation.sentinel))
        for i, part in enumerate(conversation.media):
            if [marker.number for marker in markers[i : i + 1]] != [i]:
                raise TemplateFailed(
                    f"the chat template of {self.name} does not keep {part.where} in its place; "
                    "leave it out, or give another template with --chat-template",
                    param="messages",
                )
        if len(markers) > len(conversation.media):
            raise TemplateFailed(
                f"the chat template of {self.name} writes images more than once; leave them out, "
                "or give another template with --chat-template",
                param="messages",
            )
        return prompt.with_spans(media_span(marker.start) for marker in markers)

    def _render_or_none(
        self, conversation: Conversation, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str | None:
        """Return what the template itself makes of a conversation that is probed."""
        try:
            return self._render_as_given(conversation, add_generation_prompt, kwargs)
        except TemplateFailed:
            return None

    def _variables(self, conversation: Conversation, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        check_kwargs(kwargs)
        if conversation.documents is not None and "documents" in kwargs:
            raise InvalidRequest(
                "documents are given twice; leave them out of chat_template_kwargs",
                param="chat_template_kwargs",
            )
        now = self._now()
        return {
            "enable_thinking": True,
            "date_string": now.strftime("%d %b %Y"),
            "datetime": now.strftime("%b %d %Y"),
            **kwargs,
        }

    def _render_messages(self, conversation: Conversation, variables: dict[str, Any]) -> str:
        try:
            return self._render_learning(conversation, variables)
        except TemplateFailed as error:
            wrapped = wrap_arguments(conversation)
            if wrapped is None:
                raise
            try:
                return self._render_learning(wrapped, variables)
            except TemplateFailed:
                raise error from None

    def _render_learning(self, conversation: Conversation, variables: dict[str, Any]) -> str:
        if self._arguments is not None or not conversation.argument_texts:
            return self._render_as(self._arguments or "object", conversation, variables)
        # Probing did not get through to this template's tool calls: learn it from a real one.
        try:
            rendered = self._render_as("object", conversation, variables)
        except TemplateFailed as error:
            try:
                rendered = self._render_as("text", conversation, variables)
            except TemplateFailed:
                raise error from None
            self._arguments = "text"
        else:
            self._arguments = "object"
        return rendered

    def _render_as(
        self, arguments: ArgumentForm, conversation: Conversation, variables: dict[str, Any]
    ) -> str:
        return self._run(adapt_messages(conversation, self._traits, arguments), variables)

    def _try_render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> str | None:
        variables = self._variables(Conversation([]), {})
        variables |= {"tools": tools, "documents": None, "add_generation_prompt": True}
        try:
            return self._run(messages, variables)
        except TemplateFailed:
            return None

    def _run(self, messages: list[Message], variables: dict[str, Any]) -> str:
        try:
            return self._template.render(
                variables, messages=messages, bos_token=self._texts.bos, eos_token=self._texts.eos
            )
        except RaisedByTemplate as error:
            raise TemplateFailed(
                f"the chat template of {self.name} refused the conversation: "
                f"{str(error)[:MAX_QUOTED_CHARS]}",
                param="messages",
            ) from error
        # An edge to foreign code: a template can raise whatever Python can.
        except Exception as error:
            raise TemplateFailed(
                f"the chat template of {self.name} failed{_line_of(error)}: "
                f"{type(error).__name__}: {str(error)[:MAX_QUOTED_CHARS]}",
                param="messages",
            ) from error


def check_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if a template must not be given these further variables."""
    for name in RESERVED_VARIABLES:
        if name in kwargs:
            raise InvalidRequest(
                f"chat_template_kwargs must not set {name!r}, which comes from the request or "
                "the model; leave it out",
                param="chat_template_kwargs",
            )
    thinking = kwargs.get("enable_thinking")
    if isinstance(thinking, str):  # "false" would be true for most templates
        raise InvalidRequest(
            f"chat_template_kwargs.enable_thinking is the string {thinking!r}; "
            "send true or false without quotes",
            param="chat_template_kwargs",
        )


def _compile(source: str, name: str, now: Callable[[], datetime]) -> jinja2.Template:
    way_out = "give another one with --chat-template or --chat-template-file"
    try:
        return TemplateEnvironment(now).from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError(
            f"the chat template of {name} has an error in line {error.lineno}: "
            f"{error.message}; {way_out}"
        ) from error
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        raise ConfigurationError(
            f"the chat template of {name} cannot be compiled: {error}; {way_out}"
        ) from error


def _line_of(error: Exception) -> str:
    """Return " in line n" for the innermost line of the template that failed, if any did."""
    line = 0
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f" in line {line}" if line else ""


def _without_surrogates(text: str) -> str:
    """Return the text with U+FFFD for lone surrogates, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
