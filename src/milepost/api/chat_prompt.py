"""From the messages of a request to the text and the tokens of its prompt."""

from __future__ import annotations

from typing import Any

from milepost.api.fields import field_error
from milepost.api.schemas_openai import ChatFields
from milepost.api.services import Services
from milepost.chat.control_texts import RenderedPrompt
from milepost.chat.conversation import parse_conversation
from milepost.errors import NotSupported

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def render_prompt(services: Services, fields: ChatFields) -> RenderedPrompt:
    """Return the text that the chat template makes of a request."""
    if fields.continue_final_message:
        raise NotSupported(
            "'continue_final_message' is not supported yet", param="continue_final_message"
        )
    conversation = parse_conversation(fields.messages, fields.tools, fields.documents)
    return services.templates.render(
        conversation,
        add_generation_prompt=fields.add_generation_prompt is not False,
        kwargs=template_kwargs(services, fields),
    )


async def prepare_chat_prompt(
    services: Services, fields: ChatFields, num_body_bytes: int
) -> list[int]:
    """Return the tokens of the prompt."""
    return await services.preparation.run(
        num_body_bytes,
        lambda: services.tokenizer.tokenize_prompt(render_prompt(services, fields)),
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
