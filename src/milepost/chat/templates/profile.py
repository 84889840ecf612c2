"""All that is learnt of one chat template, by asking it for small conversations.

What prompts look like, how replies are written and what becomes of histories is read here, and
nowhere else: by boundaries, the parser and the grammar of replies, the tool fallback, the log and
`milepost probe`. Each part is learnt once, when it is first asked for; those of `HistoryProfile`
once for the same variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.conversation.rendered_prompt import ControlTexts
from milepost.chat.formats.probe_texts import LATER_USER, TOOLS, Probe, Render, answer, user
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.templates.history_probe import HistoryProfile
from milepost.chat.templates.message_forms import TemplateTraits
from milepost.chat.templates.message_probe import (
    GenerationPrompts,
    MessageFrames,
    ToolsShown,
    Treatments,
    probe_frames,
    probe_generation,
    probe_tools,
    probe_treatments,
)
from milepost.chat.templates.message_repairs import NOTHING, MessageRepairs
from milepost.chat.templates.repair_probe import RepairProbe
from milepost.chat.templates.reply_probe import probe_reply_format
from milepost.chat.templates.tool_fallback import (
    ToolFallback,
    choose_calls,
    plan_tool_fallback,
    read_default_system,
)
from milepost.chat.templates.trait_probe import find_image_text, probe_traits
from milepost.errors import TemplateFailed


@dataclass(frozen=True, slots=True)
class Renderings:
    """The ways of rendering with a template; each raises TemplateFailed where it refuses."""

    untouched: Render  # messages and tools exactly as they are
    adapted: Render  # messages in the form that the template's traits ask for
    served: Render  # as in requests: with what the tool fallback writes, too


def learn_profile(source: str, renderings: Renderings, controls: ControlTexts) -> TemplateProfile:
    """Learn the traits of a template, which all other renderings need; the rest comes when asked.

    Costs some ten small renderings now, forty for the format of replies, and as many for the rest.
    Raises nothing: what a template does not show is not known.
    """
    traits = probe_traits(Probe(source, renderings.untouched))
    return TemplateProfile(source, renderings, controls, traits)


class TemplateProfile:
    """What is known of one template; its user and reply texts are those of `probe_texts`."""

    def __init__(
        self, source: str, renderings: Renderings, controls: ControlTexts, traits: TemplateTraits
    ) -> None:
        self.traits = traits
        self._render = renderings.served
        self._controls = controls
        self._untouched = Probe(source, renderings.untouched)
        self._adapted = Probe(source, renderings.adapted, controls.spelled)
        self._served = Probe(source, renderings.served, controls.spelled)

    @cached_property
    def reply_format(self) -> ReplyFormat:
        """How the model writes its replies, once the fallback has told it of tools."""
        return choose_calls(self._shown_format, self.tool_fallback)

    @cached_property
    def tool_fallback(self) -> ToolFallback | None:
        """What is written into texts because the template leaves it out; all else is without it."""
        return plan_tool_fallback(self._adapted, self._shown_format)

    @cached_property
    def repairs(self) -> MessageRepairs | None:
        """What is done with messages that the template would refuse or lose; None: nothing."""
        fallback = self.tool_fallback
        has_tools = fallback is None or not fallback.writes_calls
        repairs = RepairProbe(self._adapted, self._shown_format, has_tools=has_tools).learn()
        return None if repairs == NOTHING else repairs

    @cached_property
    def reply_markers(self) -> frozenset[str]:
        """The control texts that may stand in the content of any reply.

        Those of the markers of reasoning and calls, without the ones that frame messages.
        """
        frames = self._adapted.history(user(), answer(), user(LATER_USER)) or ""
        found = self._controls.find_in(self.reply_format.markers)
        return found - self._controls.find_in([frames])

    @cached_property
    def generation(self) -> GenerationPrompts:
        """What prompts end with."""
        return probe_generation(self._adapted, self.reply_format.reasoning)

    @cached_property
    def frames(self) -> MessageFrames:
        """What stands around the texts of messages."""
        return probe_frames(self._adapted)

    @cached_property
    def tools(self) -> ToolsShown:
        """What is shown of tools, calls and results."""
        return probe_tools(self._adapted, self.frames.tool)

    @cached_property
    def treatments(self) -> Treatments:
        """What becomes of messages that are not where the template expects them."""
        return probe_treatments(self._adapted)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """Why the plainest conversations, without and with tools, cannot be rendered; if so."""
        found: dict[str, None] = {}
        for tools in (None, TOOLS):
            try:
                self._render(make_conversation([user()], tools), True, {})
            except TemplateFailed as error:
                found[f"cannot render{' tools' if tools else ''}: {error}"] = None
        return tuple(found)[:1]

    @cached_property
    def image_text(self) -> str:
        """What stands for an image between texts; "" if images are not known."""
        return find_image_text(self._untouched)

    def history(self, variables: Mapping[str, Any], *, has_tools: bool) -> HistoryProfile:
        """Return what histories become with these variables; new, to be kept by the caller."""
        return HistoryProfile(self._served.with_variables(variables), has_tools=has_tools)

    def default_system(self, variables: Mapping[str, Any]) -> str | None:
        """Read what is written where there is no system message; see `read_default_system`.

        Asked anew every time, as it may depend on the date.
        """
        return read_default_system(self._adapted.with_variables(variables))

    @cached_property
    def _shown_format(self) -> ReplyFormat:
        return probe_reply_format(self._adapted)
