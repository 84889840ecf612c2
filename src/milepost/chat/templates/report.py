"""What is known of a template as plain values, for `milepost probe` and its JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from milepost.chat.formats.reply_format import ToolCallFormat
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate
from milepost.chat.templates.template_notes import describe_consequences
from milepost.errors import ConfigurationError


def describe_template(template: ChatTemplate) -> dict[str, Any]:
    """Return all that is known of a template as values that JSON can hold."""
    facts = template.facts
    report = asdict(facts)
    reply = report.pop("reply")
    if facts.reply.tool_calls is not None:
        reply["tool_calls"] = _describe_calls(facts.reply.tool_calls)
    return {
        "template": template.name,
        **reply,
        **report,
        "notes": describe_consequences(facts),
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


def _describe_calls(calls: ToolCallFormat) -> dict[str, Any]:
    return {"format": calls.body.name, **asdict(calls)}
