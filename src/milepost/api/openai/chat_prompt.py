"""From the messages of a request to the text and the tokens of its prompt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from milepost.api.completion import Prompt
from milepost.api.fields import field_error
from milepost.api.media_input import add_media, check_modalities
from milepost.api.openai.chat_reply import reply_reader
from milepost.api.openai.messages import parse_conversation
from milepost.api.openai.schemas import ChatFields
from milepost.api.openai.tool_fields import parse_tool_choice, parse_tools
from milepost.api.sampling_fields import INT32_MAX, check_range
from milepost.api.services import Services
from milepost.api.structured_fields import read_schema
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.media_parts import MediaPart
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.prompts.boundaries import PromptBoundaries
from milepost.chat.prompts.reply_matching import restore_reasoning
from milepost.chat.replies.reasoning_limit import (
    NO_LIMIT,
    ReasoningOptions,
    make_limit,
    reasoning_state,
)
from milepost.chat.replies.reply_plan import (
    ReplyOptions,
    ReplyPlan,
    find_generation_part,
    find_shown_tokens,
    is_reasoning_open,
    plan_reply,
)
from milepost.chat.replies.reply_rules import ReplyRules, make_constraint
from milepost.chat.reply_memory.reply_store import ReplyContext
from milepost.errors import InvalidRequest, NotSupported
from milepost.kinds import ReasoningPlace
from milepost.protocol.messages import Boundary, PromptInput, encode_tokens

# Names of one field, ours and llama-server's; the first that is given counts.
BUDGET_FIELDS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens")
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt, and how the replies to it are read."""

    prompt: Prompt
    reply: ReplyPlan
    media: tuple[MediaPart, ...] = ()  # images and audio, which are yet to be loaded
    media_positions: tuple[int, ...] = ()  # where they stand among the tokens


def render_prompt(services: Services, fields: ChatFields) -> RenderedPrompt:
    """Return the text that the chat template makes of a request."""
    conversation = read_conversation(services, fields)
    return _render(services, fields, conversation, template_kwargs(services, fields))


async def prepare_chat_prompt(
    services: Services, fields: ChatFields, num_body_bytes: int
) -> ChatPrompt:
    """Return the prompt as tokens, with its boundaries, and the plan of its replies."""
    wishes = read_reply_wishes(services, fields)
    draft = await services.preparation.run(
        num_body_bytes, lambda: make_prompt(services, fields, wishes)
    )
    prompt = await add_media(services, draft.prompt, draft.media, draft.media_positions)
    return replace(draft, prompt=prompt)


def make_prompt(services: Services, fields: ChatFields, wishes: ReplyOptions) -> ChatPrompt:
    """Return the same at once, on this thread, but without media."""
    epoch = services.replies.epoch
    conversation = read_conversation(services, fields)
    if conversation.media:
        check_modalities(services.model, conversation.media)
    kwargs = template_kwargs(services, fields)
    rendered = _render(services, fields, conversation, kwargs)
    found = services.boundaries.find_boundaries(
        conversation,
        rendered,
        add_generation_prompt=_adds_generation_prompt(fields),
        kwargs=kwargs,
    )
    tokens, boundaries, media_positions = _tokenise(services, rendered, found)
    rules = read_rules(services, fields, wishes)
    template = services.templates.choose(conversation)
    reply_format = template.reply_format
    generation_part = found.generation_prompt or ""
    if found.generation_prompt is None and _adds_generation_prompt(fields):
        generation_part = find_generation_part(rendered, conversation, template)
    is_open = is_reasoning_open(generation_part, reply_format.reasoning)
    limit = make_limit(
        read_reasoning(services, fields), reply_format.reasoning, services.vocab, is_open=is_open
    )
    state = reasoning_state(kwargs, is_open=is_open)
    if rules.schema is not None and wishes.reasoning == "none" and state == "possible":
        state = "none"  # it would stand in the text
    constraint = ""
    if not _has_grammar(services, fields, rules):
        specials = services.special_tokens
        constraint = make_constraint(rules, reply_format, state, specials, services.grammars)
    tools = conversation.tools or ()
    called = [tool for tool in tools if rules.choice.allows(tool["function"]["name"])]
    plan = plan_reply(reply_format, generation_part, called, wishes)
    prompt = PromptInput(
        tokens=encode_tokens(tokens),
        boundaries=boundaries,
        keeps_prompt_end=found.keeps_prompt_end,
        has_new_tools=services.tools.is_new(conversation),
        shown_tokens=find_shown_tokens(
            reply_format, has_tools=bool(tools), controls=services.vocab.control_texts()
        ),
        constraint=constraint,
        reasoning=limit,
    )
    context = _make_context(found, plan, epoch)
    return ChatPrompt(
        Prompt(prompt, context, found.replies), plan, conversation.media, media_positions
    )


def _tokenise(
    services: Services, rendered: RenderedPrompt, found: PromptBoundaries
) -> tuple[Sequence[int], tuple[Boundary, ...], tuple[int, ...]]:
    """Return the tokens of a prompt, its boundaries, and where among the tokens media stand."""
    exact = rendered.with_spans(found.replies.spans)
    media = [marker.end for marker in rendered.media]
    offsets = sorted({*media, *(boundary.offset for boundary in found.boundaries)})
    tokens, found_positions = services.tokenizer.tokenize_with_positions(exact, offsets)
    positions = dict(zip(offsets, found_positions, strict=True))
    boundaries = tuple(
        Boundary(
            positions[each.offset],
            each.kind,
            each.message_index,
            each.role,
            num_media=bisect_right(media, each.offset),
        )
        for each in found.boundaries
    )
    return tokens, boundaries, tuple(positions[end] for end in media)


def read_conversation(services: Services, fields: ChatFields) -> Conversation:
    """Return the conversation of a request, with the reasoning that it wants back."""
    if fields.continue_final_message:
        raise NotSupported(
            "'continue_final_message' is not supported yet", param="continue_final_message"
        )
    conversation = parse_conversation(fields.messages, fields.tools, fields.documents)
    wanted = fields.restore_reasoning
    if services.settings.chat.restore_reasoning if wanted is None else wanted:
        conversation = restore_reasoning(conversation, services.replies)
    return conversation


def read_reply_wishes(services: Services, fields: ChatFields) -> ReplyOptions:
    """Return what the server and the request want of replies; the request has the last word."""
    chat = services.settings.chat
    place = fields.reasoning_format or chat.reasoning_format
    places = get_args(ReasoningPlace)
    if place not in places:
        raise field_error("reasoning_format", f"must be one of {', '.join(places)}", place)
    return ReplyOptions(
        reasoning=cast(ReasoningPlace, place),
        parses_calls=fields.tool_choice != "none" and fields.parse_tool_calls is not False,
        parses_anything=not chat.skip_chat_parsing,
    )


def template_kwargs(services: Services, fields: ChatFields) -> dict[str, Any]:
    """Return the variables for the template: the server's, then the request's."""
    chat = services.settings.chat
    kwargs = {**read_reasoning(services, fields).kwargs, **chat.chat_template_kwargs}
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


def read_reasoning(services: Services, fields: ChatFields) -> ReasoningOptions:
    """Return what is wanted of reasoning; a request that asks for it gets it."""
    chat = services.settings.chat
    max_tokens = chat.reasoning_budget
    for name in BUDGET_FIELDS:
        value = getattr(fields, name)
        if value is not None:
            check_range(name, value, NO_LIMIT, INT32_MAX)
            max_tokens = value
            break
    else:
        if max_tokens == 0 and (fields.chat_template_kwargs or {}).get("enable_thinking") is True:
            max_tokens = NO_LIMIT
    message = fields.reasoning_budget_message
    return ReasoningOptions(
        mode=chat.reasoning,
        max_tokens=max_tokens,
        message=chat.reasoning_budget_message if message is None else message,
    )


def read_rules(services: Services, fields: ChatFields, wishes: ReplyOptions) -> ReplyRules:
    """Return what replies are held to, from the fields of a request whose tools were checked."""
    tools = fields.tools or []
    choice = parse_tool_choice(fields.tool_choice, [tool["function"]["name"] for tool in tools])
    schema = read_schema(fields, services.grammars)
    if fields.grammar and choice.must_call:
        raise InvalidRequest(
            "'grammar' and 'tool_choice' both say what the reply must be; send one of them",
            param="grammar",
        )
    may_call = choice.must_call or (wishes.parses_anything and wishes.parses_calls)
    return ReplyRules(
        schema=schema,
        tools=parse_tools(tools, choice, services.grammars) if may_call else (),
        choice=choice,
        takes_several=fields.parallel_tool_calls is not False,
    )


def _make_context(found: PromptBoundaries, plan: ReplyPlan, epoch: int) -> ReplyContext | None:
    """Return how replies are kept; None where it is not known what they are sampled behind."""
    if found.generation_prompt is None or not found.replies.history_keys:
        return None
    return ReplyContext(
        found.generation_prompt, found.replies.history_keys[-1], reply_reader(plan), epoch
    )


def _has_grammar(services: Services, fields: ChatFields, rules: ReplyRules) -> bool:
    """Return whether a grammar of the client, or of the server, says what replies are."""
    return bool(fields.grammar or (services.settings.sampling.grammar and not rules.must_hold))


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
