"""From the messages of a request to the text and the tokens of its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

from milepost.api.completion import Prompt
from milepost.api.fields import field_error
from milepost.api.schemas_openai import ChatFields
from milepost.api.services import Services
from milepost.chat.boundaries import PromptBoundaries
from milepost.chat.control_texts import RenderedPrompt
from milepost.chat.conversation import Conversation, parse_conversation
from milepost.chat.reply_plan import (
    ReasoningPlace,
    ReplyPlan,
    ReplyWishes,
    find_shown_tokens,
    plan_reply,
)
from milepost.errors import NotSupported
from milepost.protocol.messages import Boundary

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt, and how the replies to it are read."""

    prompt: Prompt
    reply: ReplyPlan


def render_prompt(services: Services, fields: ChatFields) -> RenderedPrompt:
    """Return the text that the chat template makes of a request."""
    return _render(services, fields, read_conversation(fields), template_kwargs(services, fields))


async def prepare_chat_prompt(
    services: Services, fields: ChatFields, num_body_bytes: int
) -> ChatPrompt:
    """Return the prompt as tokens, with its boundaries, and the plan of its replies."""
    wishes = read_reply_wishes(services, fields)
    return await services.preparation.run(
        num_body_bytes, lambda: _make_prompt(services, fields, wishes)
    )


def read_conversation(fields: ChatFields) -> Conversation:
    """Return the conversation of a request."""
    if fields.continue_final_message:
        raise NotSupported(
            "'continue_final_message' is not supported yet", param="continue_final_message"
        )
    return parse_conversation(fields.messages, fields.tools, fields.documents)


def read_reply_wishes(services: Services, fields: ChatFields) -> ReplyWishes:
    """Return what the server and the request want of replies; the request has the last word."""
    chat = services.settings.chat
    place = fields.reasoning_format or chat.reasoning_format
    places = get_args(ReasoningPlace)
    if place not in places:
        raise field_error("reasoning_format", f"must be one of {', '.join(places)}", place)
    return ReplyWishes(
        reasoning=cast(ReasoningPlace, place),
        parses_calls=fields.tool_choice != "none" and fields.parse_tool_calls is not False,
        parses_anything=not chat.skip_chat_parsing,
    )


def template_kwargs(services: Services, fields: ChatFields) -> dict[str, Any]:
    """Return the variables for the template: the server's, then the request's."""
    kwargs = dict(services.settings.chat.chat_template_kwargs)
    effort = fields.reasoning_effort
    if effort is not None and effort not in REASONING_EFFORTS:
        raise field_error(
            "reasoning_effort", f"must be one of {', '.join(REASONING_EFFORTS)}", effort
        )
    if effort == "none":  # llama-server's rule: no effort is no thinking
        kwargs.pop("reasoning_effort", None)
        kwargs["enable_thinking"] = False
    elif effort is not None:
        kwargs["reasoning_effort"] = effort
    return {**kwargs, **(fields.chat_template_kwargs or {})}


def _make_prompt(services: Services, fields: ChatFields, wishes: ReplyWishes) -> ChatPrompt:
    conversation = read_conversation(fields)
    kwargs = template_kwargs(services, fields)
    rendered = _render(services, fields, conversation, kwargs)
    found = services.boundaries.find(
        conversation,
        rendered,
        add_generation_prompt=_adds_generation_prompt(fields),
        kwargs=kwargs,
    )
    tokens, positions = services.tokenizer.tokenize_with_positions(
        rendered, [boundary.offset for boundary in found.boundaries]
    )
    boundaries = tuple(
        Boundary(pos, boundary.kind, boundary.message_index, boundary.role)
        for pos, boundary in zip(positions, found.boundaries, strict=True)
    )
    reply_format = services.templates.choose(conversation).reply_format
    tools = conversation.tools or ()
    prompt = Prompt(
        tokens,
        boundaries,
        found.keeps_prompt_end,
        services.tools.is_new(conversation),
        find_shown_tokens(
            reply_format, has_tools=bool(tools), controls=services.vocab.control_texts()
        ),
    )
    generation_part = _generation_part(rendered, found)
    return ChatPrompt(prompt, plan_reply(reply_format, generation_part, tools, wishes))


def _generation_part(rendered: RenderedPrompt, found: PromptBoundaries) -> str:
    """Return what stands behind the last message; all of the last line where that is not known."""
    for boundary in found.boundaries:
        if boundary.kind == "prompt_end":
            return rendered[boundary.offset :]
    return rendered.rstrip().rpartition("\n")[2]


def _render(
    services: Services,
    fields: ChatFields,
    conversation: Conversation,
    kwargs: dict[str, Any],
) -> RenderedPrompt:
    return services.templates.render(
        conversation, add_generation_prompt=_adds_generation_prompt(fields), kwargs=kwargs
    )


def _adds_generation_prompt(fields: ChatFields) -> bool:
    return fields.add_generation_prompt is not False
