"""Small chat templates with the reply formats of published families, and with invented ones.

All have the same frames of messages; only what an assistant message looks like is different.
"""

from __future__ import annotations

import re

FRAME = """\
{%- if tools %}{{ '<|tools|>' ~ (tools | tojson) ~ EXPLANATION ~ '<|end|>' }}{% endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages if message.role == 'user' %}{% set ns.last = ns.last + 1 %}{% endfor %}
{%- set turn = namespace(number=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set turn.number = turn.number + 1 %}{% endif %}
    {%- set is_last_turn = turn.number == ns.last %}
    {%- if message.role == 'assistant' %}{{ '<|assistant|>' }}REPLY{{ '<|end|>' }}
    {%- else %}{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}GENERATION{% endif %}"""


def template(reply: str, *, generation: str = "", explanation: str = "") -> str:
    """Return a template with this source for replies, and after the generation prompt."""
    return (
        FRAME.replace("EXPLANATION", repr(explanation))
        .replace("REPLY", reply)
        .replace("GENERATION", generation)
    )


def calls(source: str, *, before: str = "", after: str = "", content: str = "CONTENT") -> str:
    """Return the source of a reply: the content, and calls written as the expression `source`.

    NAME, ID and ARGUMENTS in it are those of the call, NUMBER is its place in the reply.
    """
    names = {
        "NAME": "call.function.name",
        "ID": "call.id",
        "ARGUMENTS": "(call.function.arguments | tojson)",
        "NUMBER": "loop.index0",
    }
    call = re.sub(r"\b(NAME|ID|ARGUMENTS|NUMBER)\b", lambda match: names[match[0]], source)
    return (
        content.replace("CONTENT", "{{ message.content }}")
        + "{% if message.tool_calls %}"
        + (f"{{{{ {before} }}}}" if before else "")
        + f"{{% for call in message.tool_calls %}}{{{{ {call} }}}}{{% endfor %}}"
        + (f"{{{{ {after} }}}}" if after else "")
        + "{% endif %}"
    )


def tagged(before: str, key_start: str, key_end: str, value_end: str, after: str) -> str:
    """Return the source of a reply whose calls have an argument in tags each; expressions."""
    return (
        "{{ message.content }}{% for call in message.tool_calls %}"
        + f"{{{{ {before.replace('NAME', 'call.function.name')} }}}}"
        + "{% for key, value in call.function.arguments | items %}"
        + "{% set text = value if value is string else value | tojson %}"
        + f"{{{{ {key_start} ~ key ~ {key_end} ~ text ~ {value_end} }}}}"
        + f"{{% endfor %}}{{{{ {after} }}}}{{% endfor %}}"
    )


def reasoned(
    start: str, end: str, *, condition: str = "true", key: str = "reasoning_content"
) -> str:
    """Return the source of the reasoning of a reply between two expressions."""
    return (
        f"{{% if message.{key} and {condition} %}}"
        f"{{{{ {start} ~ message.{key} ~ {end} }}}}{{% endif %}}"
    )


HERMES = calls(
    r"""'\n<tool_call>\n{"name": "' ~ NAME ~ '", "arguments": ' ~ ARGUMENTS ~ '}\n</tool_call>'"""
)
QWEN_XML = tagged(
    r"'\n<tool_call>\n<function=' ~ NAME ~ '>\n'",
    "'<parameter='",
    r"'>\n'",
    r"'\n</parameter>\n'",
    r"'</function>\n</tool_call>'",
)
GLM = tagged(
    r"'\n<tool_call>' ~ NAME ~ '\n'",
    "'<arg_key>'",
    r"'</arg_key>\n<arg_value>'",
    r"'</arg_value>\n'",
    "'</tool_call>'",
)
GEMMA = (  # values have their types, as in the published template
    """{% macro braced(value) %}{% if value is string %}{{ '<|"|>' ~ value ~ '<|"|>' }}"""
    "{% elif value is mapping %}{{ '{' }}{% for key, item in value | items %}"
    "{{ (',' if not loop.first else '') ~ key ~ ':' ~ braced(item) }}{% endfor %}{{ '}' }}"
    "{% elif value is iterable %}{{ '[' }}{% for item in value %}"
    "{{ (',' if not loop.first else '') ~ braced(item) }}{% endfor %}{{ ']' }}"
    "{% else %}{{ value | tojson }}{% endif %}{% endmacro %}"
    "{% for call in message.tool_calls %}{{ '<|tool_call>call:' ~ call.function.name"
    " ~ braced(call.function.arguments) ~ '<tool_call|>' }}{% endfor %}{{ message.content }}"
)
THINK = reasoned(r"'<think>\n'", r"'\n</think>\n\n'", condition="is_last_turn")
SPLITS_CONTENT = "{{ message.content.split('</think>')[-1] }}"
