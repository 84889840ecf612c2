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
from milepost.chat.templates.profile import TemplateProfile
from milepost.chat.templates.template import ChatTemplate, TemplateSet
from milepost.chat.templates.tool_fallback import ToolFallback
from milepost.errors import ConfigurationError

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
    return [*_about_tools(profile), *_about_reasoning(profile), *_about_messages(profile)]


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
            "Tools stand before the last user message: each new one moves them, and what is behind "
            "the user message before is computed again."
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
    if first == "refused":
        yield "There is no system role."
    elif first == "moved":
        yield "The system message stands in the last user message and moves with it."
    if later == "moved":
        yield "A later system message is moved to the start: all that follows is computed again."
    elif later == "dropped":
        yield "A later system message is left out."
    elif later == "refused" and first != "refused":
        yield "A later system message is refused."
    if profile.treatments.consecutive_users == "refused":
        yield "Users and replies must alternate."
    if profile.image_text != profile.image_text.strip():
        yield (
            f"The template writes {profile.image_text!r} for an image; here the marks of its "
            "projector stand there, without white space beside them."
        )
