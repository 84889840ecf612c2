"""What templates do with messages, with values written out for each published one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest
from tests.published import read_template
from tests.unit.chat import families
from tests.unit.chat.reply_templates import HERMES, THINK, template

from milepost.chat.formats.reply_format import Affix
from milepost.chat.templates.message_probe import GenerationPrompts
from milepost.chat.templates.profile import TemplateProfile
from milepost.chat.templates.report import describe_consequences, log_consequences
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet

Frame = tuple[str, str]


@dataclass(frozen=True)
class Facts:
    """What is expected of a template; the defaults are what most do."""

    user: Frame
    assistant: Frame
    tool: Frame | None
    generation: str
    without: str | None = None  # the generation prompt without reasoning, where it differs
    opens: tuple[bool, bool] = (False, False)
    switches: tuple[str, ...] = ()
    tools: str = "start"
    shows_calls: bool = True
    groups_results: bool = False
    systems: tuple[str, str] = ("kept", "kept")
    repeats: tuple[str, str] = ("kept", "kept")


EXPECTED = {
    "ByteDance-Seed-OSS": Facts(
        user=("<seed:bos>user\n", "<seed:eos>"),
        assistant=("<seed:bos>assistant\n", "<seed:eos>"),
        tool=("<seed:bos>tool\n", "<seed:eos>"),
        generation="<seed:bos>assistant\n",
        switches=("thinking_budget",),
    ),
    "GLM-4.6": Facts(
        user=("<|user|>\n", ""),
        assistant=("<|assistant|>\n<think></think>\n", ""),
        tool=("<|observation|>\n<tool_response>\n", "\n</tool_response>"),
        generation="<|assistant|>",
        without="/nothink<|assistant|>\n<think></think>",
        switches=("enable_thinking",),
        groups_results=True,
    ),
    "HuggingFaceTB-SmolLM3-3B": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>user\n", "<|im_end|>\n"),
        generation="<|im_start|>assistant\n",
        without="<|im_start|>assistant\n<think>\n\n</think>\n",
        switches=("enable_thinking",),
        tools="none",
        shows_calls=False,
        systems=("kept", "dropped"),
    ),
    "Kimi-K2-Instruct": Facts(
        user=("<|im_user|>user<|im_middle|>", "<|im_end|>"),
        assistant=("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
        tool=("<|im_system|>NAME<|im_middle|>## Return of functions.NAME:0\n", "<|im_end|>"),
        generation="<|im_assistant|>assistant<|im_middle|>",
    ),
    "LFM2-8B-A1B": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>tool\n<|tool_response_start|>", "<|tool_response_end|><|im_end|>\n"),
        generation="<|im_start|>assistant\n",
        shows_calls=False,
    ),
    "MiniMax-M2": Facts(
        user=("]~b]user\n", "[e~[\n"),
        assistant=("]~b]ai\n", "[e~[\n"),
        tool=("]~b]tool\n<response>", "</response>[e~[\n"),
        generation="]~b]ai\n<think>\n",
        opens=(True, True),
        groups_results=True,
        systems=("kept", "dropped"),
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": Facts(
        user=("[INST]", "[/INST]"),
        assistant=("", "</s>"),
        tool=("[TOOL_RESULTS]ID[TOOL_CONTENT]", "[/TOOL_RESULTS]"),
        generation="",
        tools="last_user",
        systems=("kept", "refused"),
        repeats=("refused", "refused"),
    ),
    "NVIDIA-Nemotron-Nano-v2": Facts(
        user=("<SPECIAL_11>User\n", "\n"),
        assistant=("<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n"),
        tool=("<SPECIAL_11>User\n<TOOL_RESPONSE>[", "]</TOOL_RESPONSE>"),
        generation="<SPECIAL_11>Assistant\n<think>\n",
        opens=(True, True),
        groups_results=True,
        systems=("kept", "dropped"),
    ),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>tool\n<tool_response>\n", "\n</tool_response>"),
        generation="<|im_start|>assistant\n",
        groups_results=True,
    ),
    "Qwen-Qwen2.5-7B-Instruct": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
        generation="<|im_start|>assistant\n",
        groups_results=True,
    ),
    "Qwen-Qwen3-0.6B": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
        generation="<|im_start|>assistant\n",
        without="<|im_start|>assistant\n<think>\n\n</think>\n\n",
        switches=("enable_thinking",),
        groups_results=True,
    ),
    "Qwen3-Coder": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>user\n<tool_response>\n", "\n</tool_response>\n<|im_end|>\n"),
        generation="<|im_start|>assistant\n",
        groups_results=True,
    ),
    "Qwen3.5-4B": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
        generation="<|im_start|>assistant\n<think>\n",
        without="<|im_start|>assistant\n<think>\n\n</think>\n\n",
        opens=(True, False),
        switches=("enable_thinking",),
        groups_results=True,
        systems=("kept", "refused"),
    ),
    "StepFun3.5-Flash": Facts(
        user=("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=("<|im_start|>tool_response\n<tool_response>", "</tool_response><|im_end|>\n"),
        generation="<|im_start|>assistant\n<think>\n",
        opens=(True, True),
        groups_results=True,
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": Facts(
        user=("<｜User｜>", ""),
        assistant=("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        tool=(
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        ),
        generation="<｜Assistant｜><think>\n",
        without="<｜Assistant｜><think>\n</think>",
        opens=(True, False),
        switches=("enable_thinking",),
        tools="none",
        groups_results=True,
        systems=("kept", "moved"),
    ),
    "deepseek-ai-DeepSeek-V3.1": Facts(
        user=("<｜User｜>", ""),
        assistant=("<｜Assistant｜><think></think>", "<｜end▁of▁sentence｜>"),
        tool=("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        generation="<｜Assistant｜><think>",
        without="<｜Assistant｜><think></think>",
        opens=(True, False),
        switches=("enable_thinking", "thinking"),
        tools="none",
        systems=("kept", "moved"),
    ),
    "google-gemma-2-2b-it": Facts(
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        tool=None,
        generation="<start_of_turn>model\n",
        tools="none",
        shows_calls=False,
        systems=("refused", "refused"),
        repeats=("refused", "refused"),
    ),
    "google-gemma-4-31B-it": Facts(
        user=("<|turn>user\n", "<turn|>\n"),
        assistant=("<|turn>model\n", "<turn|>\n"),
        tool=('response:NAME{value:<|"|>', '<|"|>}<tool_response|>'),
        generation="<|turn>model\n",
        without="<|turn>model\n<|channel>thought\n<channel|>",
        switches=("enable_thinking",),
        groups_results=True,
    ),
    "ibm-granite-granite-4.0": Facts(
        user=("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"),
        assistant=("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"),
        tool=(
            "<|start_of_role|>user<|end_of_role|>\n<tool_response>\n",
            "\n</tool_response><|end_of_text|>\n",
        ),
        generation="<|start_of_role|>assistant<|end_of_role|>",
        groups_results=True,
    ),
    "meta-llama-Llama-3.1-8B-Instruct": Facts(
        user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        tool=('<|start_header_id|>ipython<|end_header_id|>\n\n"', '"<|eot_id|>'),
        generation="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "meta-llama-Llama-3.3-70B-Instruct": Facts(
        user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        tool=('<|start_header_id|>ipython<|end_header_id|>\n\n"', '"<|eot_id|>'),
        generation="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "microsoft-Phi-3.5-mini-instruct": Facts(
        user=("<|user|>\n", "<|end|>\n"),
        assistant=("<|assistant|>\n", "<|end|>\n"),
        tool=None,
        generation="<|assistant|>\n",
        tools="none",
        shows_calls=False,
    ),
    "mistralai-Mistral-Nemo-Instruct-2407": Facts(
        user=("[INST]", "[/INST]"),
        assistant=("", "</s>"),
        tool=('[TOOL_RESULTS]{"content": ', ', "call_id": "ID"}[/TOOL_RESULTS]'),
        generation="",
        tools="last_user",
        systems=("moved", "refused"),
        repeats=("refused", "refused"),
    ),
    "openai-gpt-oss-120b": Facts(
        user=("<|start|>user<|message|>", "<|end|>"),
        assistant=("<|start|>assistant<|channel|>final<|message|>", "<|end|>"),
        tool=('<|start|>functions.NAME to=assistant<|channel|>commentary<|message|>"', '"<|end|>'),
        generation="<|start|>assistant",
        switches=("reasoning_effort",),
        systems=("kept", "dropped"),
    ),
}


def load(source: str) -> ChatTemplate:
    return ChatTemplate(
        source,
        name="test",
        texts=SpecialTexts("<s>", "</s>"),
        now=lambda: datetime(2026, 3, 4),
    )


def frame(affix: Affix | None) -> Frame | None:
    return None if affix is None else (affix.start, affix.end)


def summarize(profile: TemplateProfile) -> Facts:
    frames, generation = profile.frames, profile.generation
    user, assistant = frame(frames.user), frame(frames.assistant)
    assert user is not None
    assert assistant is not None
    differs = generation.without_reasoning != generation.with_reasoning
    return Facts(
        user,
        assistant,
        frame(frames.tool),
        generation.with_reasoning,
        generation.without_reasoning if differs else None,
        (generation.opens_reasoning, generation.opens_reasoning_anyway),
        generation.switches,
        profile.tools.place,
        profile.tools.shows_calls,
        profile.tools.groups_results,
        (profile.treatments.first_system, profile.treatments.later_system),
        (profile.treatments.consecutive_users, profile.treatments.consecutive_replies),
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_the_facts_about_a_published_template_are_learnt(name: str) -> None:
    source = read_template(name)
    assert summarize(load(source).profile) == EXPECTED[name]


def test_frames_are_learnt_from_messages_in_a_row() -> None:
    frames = load(template(HERMES)).profile.frames
    assert frame(frames.system) == ("<|system|>", "<|end|>")
    assert frame(frames.user) == ("<|user|>", "<|end|>")
    assert frame(frames.assistant) == ("<|assistant|>", "<|end|>")
    assert frame(frames.tool) == ("<|tool|>", "<|end|>")


def test_a_generation_prompt_that_opens_reasoning_is_noticed() -> None:
    source = template(
        THINK + "{{ message.content }}",
        generation=r"{{ '<think>\n' if enable_thinking else '<think></think>' }}",
    )
    assert load(source).profile.generation == GenerationPrompts(
        "<|assistant|><think>\n",
        "<|assistant|><think></think>",
        opens_reasoning=True,
        opens_reasoning_anyway=False,
        switches=("enable_thinking",),
    )


@pytest.mark.parametrize("name", ["reasoning_effort", "thinking_budget", "thinking"])
def test_variables_that_decide_on_reasoning_are_found(name: str) -> None:
    source = template("{{ message.content }}", generation=f"{{{{ {name} }}}}")
    assert load(source).profile.generation.switches == (name,)


def test_alternating_templates_refuse_what_they_do() -> None:
    profile = load(families.INST_ALTERNATING).profile
    assert (profile.treatments.consecutive_users, profile.treatments.consecutive_replies) == (
        "refused",
        "refused",
    )
    assert profile.tools.shows_result_ids
    assert "User messages that follow each other become one." in describe_consequences(profile)


def test_a_template_without_a_system_role_says_so() -> None:
    profile = load(families.NO_SYSTEM).profile
    assert (profile.treatments.first_system, profile.frames.system) == ("refused", None)
    merged = "The system message becomes a part of the first user message."
    assert merged in describe_consequences(profile)


def test_tools_before_the_last_user_message_are_noticed() -> None:
    source = (
        "{% for message in messages %}{% if tools and loop.last %}{{ tools | tojson }}{% endif %}"
        "{{ message.role }}: {{ message.content }};{% endfor %}"
    )
    profile = load(source).profile
    assert profile.tools.place == "last_user"
    notes = describe_consequences(profile)
    assert any(note.startswith("Tools stand before the last user message") for note in notes)


PARTS = (
    "{% for m in messages %}{% for p in m.content %}"
    "{{ p.text if p.type == 'text' else IMAGE }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (PARTS.replace("IMAGE", "'<img>'"), "<img>"),
        (PARTS.replace("IMAGE", r"'<img>\n'"), "<img>\n"),
        (PARTS.replace("IMAGE", "''"), ""),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ""),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", ""),
        ("{% for m in messages %}{{ m.content + '' }}{% endfor %}", ""),
    ],
)
def test_what_is_written_for_an_image_is_found(source: str, text: str) -> None:
    assert load(source).profile.image_text == text


def test_results_that_share_a_message_are_noticed() -> None:
    source = (
        "{% for message in messages %}{% if message.role != 'tool' %}"
        "<{{ message.role }}>{{ message.content }}{{ (message.tool_calls or []) | tojson }}</>"
        "{% else %}{% if loop.previtem.role != 'tool' %}<results>{% endif %}"
        "[{{ message.content }}]{% if loop.last or loop.nextitem.role != 'tool' %}</>{% endif %}"
        "{% endif %}{% endfor %}"
    )
    profile = load(source).profile
    assert profile.tools.groups_results
    assert not load(template(HERMES)).profile.tools.groups_results


@pytest.mark.parametrize(
    ("source", "note"),
    [
        (template("{{ message.content }}"), "The form of tool calls is not known"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "Tools are not listed: they are described in the system message; calls and results",
        ),
        ("{{ messages | length }}", "Tools are not listed: the model learns of none."),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}"
            "<call>{'name': <tool>, 'arguments': <object>}</call>".replace("'", '"'),
            "Tool calls of earlier replies are left out: they become its text.",
        ),
        (template(THINK + HERMES), "Reasoning is left out of histories once the user speaks"),
        (
            template("{{ message.content.split('</r>')[-1] }}", generation="<r>"),
            "Every reply begins with reasoning",
        ),
        (
            PARTS.replace("IMAGE", r"'<img>\n'"),
            r"The template writes '<img>\n' for an image; here the marks of its projector",
        ),
    ],
)
def test_what_users_should_know_is_said(source: str, note: str) -> None:
    assert any(each.startswith(note) for each in describe_consequences(load(source).profile))


def test_what_a_template_means_for_users_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = load("{% for m in messages %}{{ m.content }}{% endfor %}")
    with caplog.at_level("INFO"):
        log_consequences(TemplateSet(plain, tool_use=load(template(HERMES))))
    (record,) = caplog.records
    assert record.getMessage().startswith("chat template of test: Tools are not listed")


@pytest.mark.parametrize("source", ["", "{{ raise_exception('no') }}"])
def test_a_template_that_shows_nothing_has_no_facts(source: str) -> None:
    profile = load(source).profile
    assert profile.frames.user is None
    assert profile.tools.place == "none"
    assert not profile.tools.shows_calls


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{' ~ '[' * 50000 }}{% for m in messages %}{{ m }}{% endfor %}",
        "{% for m in messages %}{{ '{' * 999 ~ m.tool_calls }}{% endfor %}",
        "{% for m in messages | reverse %}{{ m }}{% endfor %}",
        "{{ messages }}{{ tools }}",
        *(value for name, value in vars(families).items() if name.isupper()),
    ],
)
def test_no_template_makes_probing_fail(source: str) -> None:
    profile = load(source).profile
    assert isinstance(describe_consequences(profile), list)
