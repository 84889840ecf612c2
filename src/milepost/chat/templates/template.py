"""One chat template: a `Conversation` in, the text of a prompt out.

Compiles once, learns what the template needs (`profile`), and renders without copying contents. Any
failure of a template is a `TemplateFailed`; none takes the server down.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any

import jinja2

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.rendered_prompt import (
    ControlTexts,
    RenderedPrompt,
    media_span,
    unmark_control_texts,
)
from milepost.chat.conversation.sentinels import find_markers, unescape_sentinel
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.templates.environment import (
    RaisedByTemplate,
    TemplateEnvironment,
    find_variables,
)
from milepost.chat.templates.message_forms import (
    ArgumentForm,
    adapt_messages,
    complete_tools,
    wrap_arguments,
)
from milepost.chat.templates.message_repairs import STRICTEST, repair_messages
from milepost.chat.templates.profile import Renderings, learn_profile
from milepost.chat.templates.tool_fallback import CALLS, ToolFallback, write_tools
from milepost.chat.vocab import Vocab
from milepost.errors import ConfigurationError, InvalidRequest, TemplateFailed
from milepost.kinds import TOOL_ROLES

logger = logging.getLogger(__name__)

FUNCTIONS = "functions"  # the name of tools, as JSON text, before there was `tools`
AS_TEXTS = ToolFallback(
    tools_in="first_user", writes_calls=True, writes_results=True, joins_users=True
)
GENERATION = "add_generation_prompt"
RESERVED_VARIABLES = ("messages", "tools", "bos_token", "eos_token", GENERATION)
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
        self._reads_functions = FUNCTIONS in find_variables(source)  # firefunction
        renderings = Renderings(self._render_untouched, self._render_adapted, self._render_served)
        self.profile = learn_profile(source, renderings, self.controls)
        self._arguments = self.profile.traits.arguments
        self._said: set[str] = set()  # what was logged

    @property
    def reply_format(self) -> ReplyFormat:
        """How the model writes its replies."""
        return self.profile.reply_format

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
            marked, mark = self.controls.mark_control_texts(
                conversation, lambda: self.profile.reply_markers
            )
        except RecursionError as error:
            raise TemplateFailed(
                "tools, or arguments of tool calls, that hold the text of a control token are "
                "nested too deeply; send a simpler value",
                param="messages",
            ) from error
        text = self._render_repaired(marked, add_generation_prompt, kwargs)
        if not conversation.media:
            return unmark_control_texts(text, mark)
        text = unescape_sentinel(text, conversation.sentinel)
        return self._note_media(unmark_control_texts(text, mark), conversation)

    def _render_repaired(
        self, conversation: Conversation, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        """Render what the template takes of a conversation, in texts alone if it takes no more."""
        shown = conversation
        if _speaks_of_tools(conversation):
            shown = self._show_tools(conversation, kwargs)
        repaired = shown
        if self.profile.repairs is not None:
            calls = self.profile.reply_format.tool_calls
            repaired = repair_messages(shown, self.profile.repairs, calls)
        if repaired is not shown:
            self._log_once("are not sent to the model as they are")
        try:
            return self._render_adapted(repaired, add_generation_prompt, kwargs)
        except TemplateFailed as error:
            # A client sends what it has recorded again and again: it must not be locked out.
            texts = write_tools(conversation, CALLS, AS_TEXTS, lambda: "")
            strict = repair_messages(texts, STRICTEST)
            try:
                text = self._render_adapted(strict, add_generation_prompt, kwargs)
            except TemplateFailed:
                raise error from None
            self._log_once(f"are written as plain turns, as {error}")
            return text

    def _log_once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning(
                "chat template of %s: messages of a request %s; `milepost probe` says why",
                self.name,
                what[:MAX_QUOTED_CHARS],
            )

    def _show_tools(self, conversation: Conversation, kwargs: Mapping[str, Any]) -> Conversation:
        fallback, calls = self.profile.tool_fallback, self.profile.reply_format.tool_calls
        if fallback is None:
            return conversation
        return write_tools(
            conversation, calls or CALLS, fallback, lambda: self.profile.default_system(kwargs)
        )

    def _render_adapted(
        self, conversation: Conversation, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        variables = self._variables(conversation, kwargs)
        variables[GENERATION] = add_generation_prompt
        no_tools: list[Any] | None = [] if self.profile.traits.takes_empty_tools else None
        variables["tools"] = conversation.tools or no_tools
        if self._reads_functions and conversation.tools and FUNCTIONS not in variables:
            described = [tool["function"] for tool in conversation.tools]
            variables[FUNCTIONS] = json.dumps(described, indent=4, ensure_ascii=False)
        if conversation.documents is not None or "documents" not in variables:
            variables["documents"] = conversation.documents
        return _without_surrogates(self._render_completing(conversation, variables))

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

    def _render_completing(self, conversation: Conversation, variables: dict[str, Any]) -> str:
        try:
            return self._render_messages(conversation, variables)
        except TemplateFailed as error:
            if not conversation.tools:
                raise
            try:
                variables["tools"] = complete_tools(conversation.tools)
                return self._render_messages(conversation, variables)
            except TemplateFailed:
                raise error from None

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
        return self._run(adapt_messages(conversation, self.profile.traits, arguments), variables)

    def _render_untouched(
        self, conversation: Conversation, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        variables = self._variables(conversation, kwargs)
        variables |= {"tools": conversation.tools, "documents": conversation.documents}
        variables[GENERATION] = add_generation_prompt
        return self._run(conversation.messages, variables)

    def _render_served(
        self, conversation: Conversation, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        return self.render(
            conversation, add_generation_prompt=add_generation_prompt, kwargs=kwargs
        ).text

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


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates of a model."""

    default: ChatTemplate
    tool_use: ChatTemplate | None = None  # for requests with tools
    is_fallback: bool = False  # the model has no template and none was given

    def choose(self, conversation: Conversation) -> ChatTemplate:
        """Return the template for a conversation."""
        if conversation.tools and self.tool_use is not None:
            return self.tool_use
        return self.default

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Render with the template for the conversation; see `ChatTemplate.render`."""
        return self.choose(conversation).render(
            conversation, add_generation_prompt=add_generation_prompt, kwargs=kwargs
        )


def _speaks_of_tools(conversation: Conversation) -> bool:
    """Say whether there are tools, calls or results in a conversation."""
    return bool(conversation.tools) or any(
        "tool_calls" in message or message["role"] in TOOL_ROLES
        for message in conversation.messages
    )


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
