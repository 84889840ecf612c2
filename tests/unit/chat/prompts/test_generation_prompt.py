"""What begins the reply is found in prompts of which is not known where the last message ends."""

from __future__ import annotations

import pytest

from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.conversation.rendered_prompt import ControlTexts
from milepost.chat.prompts.boundaries import find_generation_prompt
from milepost.chat.templates.template import ChatTemplate, SpecialTexts


def generation_prompt(content: str, *, framed: bool, opens: bool, has_control: bool) -> str:
    """Return what is found to open the reply to a message."""
    frame = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    before, after = frame if framed else ("</s>USER: ", " ASSISTANT: ")
    source = (
        "{%- for m in messages %}{% if m.role == 'assistant' %}"
        f"{after}<think>\n{{{{ m.reasoning_content }}}}\n</think>\n{{{{ m.content }}}}"
        f"{{% else %}}{before}{{{{ m.content }}}}{{% endif %}}{{% endfor -%}}"
        f"{{%- if add_generation_prompt %}}{after}{'<think>' if opens else ''}{{% endif %}}"
    )
    controls = ["<|im_start|>", "<|im_end|>", "</s>", *(["<think>"] if has_control else [])]
    texts = SpecialTexts("<s>", "</s>", ControlTexts(controls))
    template = ChatTemplate(source, name="test", texts=texts)
    assert template.reply_format.reasoning is not None
    conversation = make_conversation([{"role": "user", "content": content}])
    return find_generation_prompt(template.render(conversation), conversation, template)


@pytest.mark.parametrize("has_control", [False, True])
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize(
    "content", ["a", "What does `<think>` do", "<|im_end|> and <think>", 5000 * "<think>a"]
)
def test_text_of_the_user_opens_no_reasoning(
    content: str, framed: bool, opens: bool, has_control: bool
) -> None:
    found = generation_prompt(content, framed=framed, opens=opens, has_control=has_control)
    assert found.endswith("<think>" if opens else ("assistant\n", "ASSISTANT: ")[not framed])
    assert found.count("<think>") == opens
    assert "do" not in found
