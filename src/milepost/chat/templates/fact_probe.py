"""Puts together all that is learnt of a template."""

from __future__ import annotations

from milepost.chat.formats.probe_texts import Probe
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.templates.message_forms import TemplateTraits
from milepost.chat.templates.message_probe import (
    find_tools,
    groups_results,
    probe_frames,
    probe_generation,
    shows_calls,
    shows_result_ids,
    treat_consecutive_replies,
    treat_consecutive_users,
    treat_first_system,
    treat_later_system,
)
from milepost.chat.templates.profile import TemplateFacts, ToolFallback


def probe_facts(
    probe: Probe,
    traits: TemplateTraits,
    reply: ReplyFormat,
    fallback: ToolFallback | None,
    image_text: str,
) -> TemplateFacts:
    """Return what a template does with conversations; costs up to fifty small renderings."""
    frames = probe_frames(probe)
    return TemplateFacts(
        traits=traits,
        reply=reply,
        tool_fallback=fallback,
        generation=probe_generation(probe, reply.reasoning),
        frames=frames,
        tools=find_tools(probe),
        shows_calls=shows_calls(probe),
        groups_results=groups_results(probe, frames.tool),
        shows_result_ids=shows_result_ids(probe),
        first_system=treat_first_system(probe),
        later_system=treat_later_system(probe),
        consecutive_users=treat_consecutive_users(probe),
        consecutive_replies=treat_consecutive_replies(probe),
        image_text=image_text,
    )
