"""Reads OpenAI's chat fields: what a request wants of its prompt and of its replies.

    ChatFields  ──>  Conversation, PromptOptions  ──>  the prompt of `milepost.chat.prompts`

Messages are parsed in `messages`; what all endpoints take is read in `generation_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from milepost.api.completion import Prompt
from milepost.api.generation_fields import INT32_MAX, check_range, read_n_probs, read_schema
from milepost.api.http_body import field_error, quote
from milepost.api.media_input import add_media, check_modalities
from milepost.api.openai.messages import parse_conversation
from milepost.api.openai.schemas import ChatFields
from milepost.api.server import ServedModel, Server
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.prompts.prepare import PreparedPrompt, PromptOptions
from milepost.chat.replies.reply_plan import (
    NO_LIMIT,
    ReasoningOptions,
    ReplyOptions,
    ReplyPlan,
    ReplyRules,
    ToolChoice,
)
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest, NotSupported
from milepost.kinds import ReasoningPlace

# Names of one field, ours and llama-server's; the first that is given counts.
BUDGET_FIELDS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens")
MAX_TOP_LOGPROBS = 20  # OpenAI's limit
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


async def prepare_chat(
    server: Server, model: ServedModel, fields: ChatFields, num_body_bytes: int
) -> tuple[Prompt, ReplyPlan]:
    """Return the prompt with its media, and how the replies to it are read."""
    reply = read_reply_options(model, fields)
    prepared = await server.preparation.run(
        num_body_bytes, lambda: prepare_prompt(model, fields, reply)
    )
    prompt = Prompt(prepared.input, prepared.context, prepared.replies)
    if prepared.media:
        prompt = await add_media(model, prompt, prepared.media, prepared.media_positions)
    return prompt, prepared.plan


def prepare_prompt(
    model: ServedModel, fields: ChatFields, reply: ReplyOptions | None = None
) -> PreparedPrompt:
    """Return the prompt at once, on this thread, but without media."""
    conversation = read_conversation(fields)
    if conversation.media:
        check_modalities(model.info, conversation.media)
    reply = reply or read_reply_options(model, fields)
    return model.prompts.prepare(conversation, read_options(model, fields, reply))


def render_prompt(model: ServedModel, fields: ChatFields) -> RenderedPrompt:
    """Return the text that the chat template makes of a request."""
    conversation = read_conversation(fields)
    options = PromptOptions(
        variables=read_variables(model, fields),
        adds_generation_prompt=fields.add_generation_prompt is not False,
        restores_reasoning=_restores_reasoning(model, fields),
    )
    return model.prompts.render(conversation, options)


def read_conversation(fields: ChatFields) -> Conversation:
    """Return the conversation of a request."""
    if fields.continue_final_message:
        raise NotSupported(
            "'continue_final_message' is not supported yet", param="continue_final_message"
        )
    return parse_conversation(fields.messages, fields.tools, fields.documents)


def read_options(model: ServedModel, fields: ChatFields, reply: ReplyOptions) -> PromptOptions:
    """Return what the server and a request, whose tools were checked, want of a prompt."""
    variables = read_variables(model, fields)
    rules = read_rules(fields, reply, model.prompts.grammars)
    server_grammar = model.settings.sampling.grammar and not rules.must_hold
    return PromptOptions(
        variables=variables,
        adds_generation_prompt=fields.add_generation_prompt is not False,
        restores_reasoning=_restores_reasoning(model, fields),
        reasoning=read_reasoning(model, fields),
        reply=reply,
        rules=rules,
        has_grammar=bool(fields.grammar or server_grammar),
    )


def read_num_logprobs(fields: ChatFields) -> int:
    """Return how many alternatives per token are wanted; -1: no logprobs at all."""
    if not fields.logprobs:
        if fields.top_logprobs:
            raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
        return read_n_probs(fields)
    if fields.top_logprobs is None:
        return max(read_n_probs(fields), 0)
    if not 0 <= fields.top_logprobs <= MAX_TOP_LOGPROBS:
        raise field_error(
            "top_logprobs", f"must be between 0 and {MAX_TOP_LOGPROBS}", fields.top_logprobs
        )
    return fields.top_logprobs


def read_reply_options(model: ServedModel, fields: ChatFields) -> ReplyOptions:
    """Return what the server and the request want of replies; the latter has the last word."""
    chat = model.settings.chat
    place = fields.reasoning_format or chat.reasoning_format
    places = get_args(ReasoningPlace)
    if place not in places:
        raise field_error("reasoning_format", f"must be one of {', '.join(places)}", place)
    return ReplyOptions(
        reasoning=cast(ReasoningPlace, place),
        parses_calls=fields.tool_choice != "none" and fields.parse_tool_calls is not False,
        parses_anything=not chat.skip_chat_parsing,
    )


def read_variables(model: ServedModel, fields: ChatFields) -> dict[str, Any]:
    """Return the variables for the template: the server's, then the request's."""
    chat = model.settings.chat
    kwargs = {**read_reasoning(model, fields).kwargs, **chat.chat_template_kwargs}
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


def read_reasoning(model: ServedModel, fields: ChatFields) -> ReasoningOptions:
    """Return what is wanted of reasoning; a request that asks for it gets it."""
    chat = model.settings.chat
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


def read_rules(fields: ChatFields, reply: ReplyOptions, grammars: GrammarChecker) -> ReplyRules:
    """Return what replies are held to, from the fields of a request whose tools were checked."""
    tools = fields.tools or []
    choice = parse_tool_choice(fields.tool_choice, [tool["function"]["name"] for tool in tools])
    schema = read_schema(fields, grammars)
    if fields.grammar and choice.must_call:
        raise InvalidRequest(
            "'grammar' and 'tool_choice' both say what the reply must be; send one of them",
            param="grammar",
        )
    may_call = choice.must_call or (reply.parses_anything and reply.parses_calls)
    return ReplyRules(
        schema=schema,
        tools=parse_tools(tools, choice, grammars) if may_call else (),
        choice=choice,
        takes_several=fields.parallel_tool_calls is not False,
    )


def _restores_reasoning(model: ServedModel, fields: ChatFields) -> bool:
    wanted = fields.restore_reasoning
    return model.settings.chat.restore_reasoning if wanted is None else wanted


def parse_tool_choice(value: object, names: Sequence[str]) -> ToolChoice:
    """Return what `tool_choice` asks for; `names` are those of the tools of the request."""
    if value is None:
        return ToolChoice()
    if value in ("auto", "none", "required"):
        choice = ToolChoice(value)
    elif isinstance(value, dict) and value.get("type") == "allowed_tools":
        choice = _parse_allowed(value)
    else:
        choice = ToolChoice("named", (_parse_name(value, "tool_choice"),))
    if choice.must_call and not names:
        raise _invalid("tool_choice", f"is {quote(value)}, but the request has no tools")
    for name in choice.names:
        if name not in names:
            raise _invalid(
                "tool_choice", f"names {quote(name)}, but the tools are {', '.join(names)}"
            )
    return choice


def parse_tools(
    tools: object, choice: ToolChoice, checker: GrammarChecker
) -> tuple[CallableTool, ...]:
    """Return the tools that may be called, out of those of a request that was checked.

    Raises InvalidRequest for a schema that cannot be used, if replies are held to it: of a strict
    tool, or of one that may have to be called.
    """
    if choice.mode == "none" or not isinstance(tools, list):
        return ()
    callable_tools = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        if not choice.allows(function["name"]):
            continue
        is_exact = function.get("strict") is True
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        is_held, place = is_exact or choice.must_call, f"tools[{index}]"
        if is_held:
            where = f"{place}.function.parameters"
            schema = prepare_schema(schema, where, checker, is_exact=is_exact)
        callable_tools.append(
            CallableTool(function["name"], schema, is_held, keeps_order=is_exact, place=place)
        )
    return tuple(callable_tools)


def _parse_allowed(value: Mapping[str, Any]) -> ToolChoice:
    allowed = value.get("allowed_tools", value)
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list) or not tools:
        raise _invalid("tool_choice.allowed_tools.tools", "must be a list of tools")
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise _invalid("tool_choice.allowed_tools.mode", f"must be auto or required, not {mode!r}")
    where = "tool_choice.allowed_tools.tools[{}]"
    return ToolChoice(
        mode, tuple(_parse_name(tool, where.format(i)) for i, tool in enumerate(tools))
    )


def _parse_name(value: object, where: str) -> str:
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _invalid(
            where,
            'must be "auto", "none", "required" or '
            f'{{"type": "function", "function": {{"name": …}}}}, but is {quote(value)}',
        )
    return name


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)
