"""Chooses the chat templates of a model: its own, a built-in family, a text or a file.

Used once at start, by the assembly of the front end.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet
from milepost.chat.vocab import Vocab
from milepost.errors import ConfigurationError

logger = logging.getLogger(__name__)

TOOL_USE = "tool_use"
FALLBACK = "chatml"


def load_templates(
    embedded: Mapping[str, str],
    vocab: Vocab,
    *,
    chat_template: str = "",
    chat_template_file: str = "",
) -> TemplateSet:
    """Load the templates that flags ask for, or else the model's own, or else ChatML.

    `embedded` are the templates in the model file by name, the unnamed one under "".
    `chat_template` is the text of a template, or the name of one of the model's or of a built-in
    family.

    Raises ConfigurationError if a template is unknown, unreadable or faulty.
    """
    texts = SpecialTexts.of(vocab)
    if chat_template and chat_template_file:
        raise ConfigurationError(
            "--chat-template and --chat-template-file are both given; leave one of them out"
        )
    if chat_template_file:
        source = _read_template(chat_template_file)
        return TemplateSet(ChatTemplate(source, name=chat_template_file, texts=texts))
    if chat_template:
        return TemplateSet(_template_of_flag(chat_template, embedded, texts))
    return _load_embedded(embedded, texts)


def _load_embedded(embedded: Mapping[str, str], texts: SpecialTexts) -> TemplateSet:
    default = embedded.get("", "")
    tool_use = embedded.get(TOOL_USE, "")
    if default:
        return TemplateSet(
            ChatTemplate(default, name="the model", texts=texts), _load_tool_use(tool_use, texts)
        )
    if tool_use:
        return TemplateSet(ChatTemplate(tool_use, name="the model (tool_use)", texts=texts))
    logger.warning(
        "the model has no chat template; using %s, give another one with --chat-template", FALLBACK
    )
    template = ChatTemplate(BUILTIN_TEMPLATES[FALLBACK], name=FALLBACK, texts=texts)
    return TemplateSet(template, is_fallback=True)


def _load_tool_use(source: str, texts: SpecialTexts) -> ChatTemplate | None:
    if not source:
        return None
    try:
        return ChatTemplate(source, name="the model (tool_use)", texts=texts)
    except ConfigurationError as error:  # the default one still serves, as in llama-server
        logger.warning("%s; using the default template for tools too", error)
        return None


def _template_of_flag(text: str, embedded: Mapping[str, str], texts: SpecialTexts) -> ChatTemplate:
    if re.search(r"\{[{%#]", text):
        return ChatTemplate(text, name="--chat-template", texts=texts)
    if text in embedded:
        return ChatTemplate(embedded[text], name=f"the model ({text})", texts=texts)
    if text in BUILTIN_TEMPLATES:
        return ChatTemplate(BUILTIN_TEMPLATES[text], name=text, texts=texts)
    names = sorted({*BUILTIN_TEMPLATES, *embedded} - {""})
    raise ConfigurationError(
        f"--chat-template {text!r} is neither a Jinja template nor the name of one; "
        f"the names are {', '.join(names)}"
    )


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"--chat-template-file {path!r} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--chat-template-file {path!r} is not UTF-8 text") from error
