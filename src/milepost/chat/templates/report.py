"""What is known of a template, for people: plain values, and sentences on what they mean.

Called by `milepost probe` and, for the log, at the start of a server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milepost.chat.formats.reply_format import ToolCallFormat
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.message_repairs import MessageRepairs
from milepost.chat.templates.profile import TemplateProfile
from milepost.chat.templates.template import ChatTemplate, TemplateSet
from milepost.chat.templates.tool_fallback import ToolFallback
from milepost.errors import ConfigurationError

REPAIRS = {
    "first_system_to_user": "The system message becomes a part of the first user message.",
    "joins_systems": "Several system messages at the start become one.",
    "later_system_to_user": (
        "A later system message becomes text of the user, marked as the system's."
    ),
    "joins_users": "User messages that follow each other become one.",
    "joins_replies": "Replies that follow each other become one.",
    "drops_empty_replies": "Replies without text and calls are left out.",
    "leads_with_user": "An empty user message is put before a reply or result that begins.",
    "splits_calls": "Several calls of a reply become replies of their own, each with its result.",
    "joins_calls": "Replies with calls that follow each other become one.",
    "fills_ids": "Calls and results without an id get one.",
    "wraps_arguments": "Arguments that are no object become the one argument 'arguments'.",
    "orphans_to_user": "Results without a call become texts of the user.",
}
WORDS = {
    "with_calls": "has the calls written after it",
    "with_calls_and_results": "has the calls written after it, and results are texts of the user",
    "reasoning": "becomes reasoning",
    "apart": "becomes a reply of its own",
}

logger = logging.getLogger(__name__)


def describe_template(template: ChatTemplate) -> dict[str, Any]:
    """Return all that is known of a template as values that JSON can hold."""
    profile = template.profile
    reply = asdict(profile.reply_format)
    if profile.reply_format.tool_calls is not None:
        reply["tool_calls"] = _describe_calls(profile.reply_format.tool_calls)
    fallback, tools = profile.tool_fallback, asdict(profile.tools)
    return {
        "template": template.name,
        **reply,
        "traits": asdict(profile.traits),
        "tool_fallback": None if fallback is None else asdict(fallback),
        "repairs": None if profile.repairs is None else asdict(profile.repairs),
        "generation": asdict(profile.generation),
        "frames": asdict(profile.frames),
        "tools": tools.pop("place"),
        **tools,
        **asdict(profile.treatments),
        "image_text": profile.image_text,
        "notes": describe_consequences(profile),
    }


def load_template(target: str) -> ChatTemplate:
    """Return the template in a file, or the built-in one of this name.

    Raises ConfigurationError if there is neither, or if it is faulty.
    """
    if target in BUILTIN_TEMPLATES:
        return ChatTemplate(BUILTIN_TEMPLATES[target], name=target)
    try:
        source = Path(target).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{target} is neither a file nor the name of a built-in template; "
            f"the names are {', '.join(sorted(BUILTIN_TEMPLATES))}"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{target} is neither a GGUF file nor a template, which is UTF-8 text"
        ) from error
    return ChatTemplate(source, name=target)


def describe_consequences(profile: TemplateProfile) -> list[str]:
    """Return the sentences about what a profile means for users, what is missing first."""
    if profile.failures:
        return [f"This template {failure}" for failure in profile.failures]
    return [
        *_about_tools(profile),
        *_about_reasoning(profile),
        *_about_messages(profile),
        *_about_repairs(profile.repairs),
    ]


def log_consequences(templates: TemplateSet) -> None:
    """Log the sentences that hold for the templates of a model, one line each."""
    for template in (templates.default, templates.tool_use):
        if template is not None and (notes := describe_consequences(template.profile)):
            logger.info("chat template of %s: %s", template.name, " ".join(notes))


def _describe_calls(calls: ToolCallFormat) -> dict[str, Any]:
    return {"format": calls.body.name, **asdict(calls)}


def _about_tools(profile: TemplateProfile) -> Iterator[str]:
    fallback = profile.tool_fallback
    if profile.tools.place == "none":
        yield _about_missing_tools(fallback)
    elif profile.reply_format.tool_calls is None:
        yield "The form of tool calls is not known: calls stay text."
    if profile.tools.place != "none" and not profile.tools.shows_calls:
        yield (
            "Tool calls of earlier replies are left out: "
            + ("the model sees results only." if fallback is None else "they become its text.")
        )
    if profile.tools.place == "last_user":
        yield (
            "Tools stand before the last user message: each new one moves them, and what follows "
            "the previous one is computed again."
        )
    calls = profile.reply_format.tool_calls
    if calls is not None and profile.tools.place != "none" and not calls.takes_several:
        yield "A reply holds one tool call at most."


def _about_missing_tools(fallback: ToolFallback | None) -> str:
    if fallback is None:
        return "Tools are not listed: the model learns of none."
    place = "system message" if fallback.tools_in == "system" else "first message of the user"
    rest = "; calls and results become texts" if fallback.writes_calls else ""
    return f"Tools are not listed: they are described in the {place}{rest}."


def _about_reasoning(profile: TemplateProfile) -> Iterator[str]:
    reasoning = profile.reply_format.reasoning
    if reasoning is None:
        return
    if profile.generation.opens_reasoning_anyway:
        yield "Every reply begins with reasoning; enable_thinking does not end it."
    if reasoning.earlier == "dropped_before_last_user":
        yield (
            "Reasoning is left out of histories once the user speaks again: from there on, replies "
            "are computed anew."
        )
    elif reasoning.earlier == "dropped":
        yield "Reasoning is never written into histories."


def _about_messages(profile: TemplateProfile) -> Iterator[str]:
    first, later = profile.treatments.first_system, profile.treatments.later_system
    is_merged = profile.repairs is not None and profile.repairs.first_system_to_user
    if first == "moved" and not is_merged:
        yield "The system message stands in the last user message and moves with it."
    if later == "moved":
        yield "A later system message is moved to the start: all that follows is computed again."
    if profile.traits.merges_thinking:
        yield "Text beside a call is a part of its reasoning, and goes with it."
    if profile.image_text != profile.image_text.strip():
        yield (
            f"The template writes {profile.image_text!r} for an image; here the marks of its "
            "projector stand there, without white space beside them."
        )


def _about_repairs(repairs: MessageRepairs | None) -> Iterator[str]:
    """Say what is done with messages that the template refuses or loses."""
    if repairs is None:
        return
    for name, sentence in REPAIRS.items():
        if getattr(repairs, name):
            yield sentence
    if repairs.before_user is not None:
        yield f"A reply {repairs.before_user!r} is put between results and the next user message."
    if repairs.words != "kept":
        yield f"Text beside calls {WORDS[repairs.words]}."
