"""Which file of a hub repository is taken."""

from __future__ import annotations

import pytest

from milepost.cli.hub import HubFailed, choose_file, choose_projector, parse_repo, parts_of

FILES = [
    "README.md",
    "mmproj-model-Q4_K_M.gguf",
    "model-F16.gguf",
    "model-Q4_K_M-00001-of-00002.gguf",
    "model-Q4_K_M-00002-of-00002.gguf",
    "model-Q8_0.gguf",
]


@pytest.mark.parametrize(
    ("quant", "chosen"),
    [
        ("", "model-Q4_K_M-00001-of-00002.gguf"),
        ("q8_0", "model-Q8_0.gguf"),
        ("F16", "model-F16.gguf"),
        ("Q4_K", ""),  # not followed by a dot or dash
        ("Q2_K", ""),
        (".*", ""),  # no pattern, only a name
    ],
)
def test_a_quant_is_matched_whole_and_in_any_case(quant: str, chosen: str) -> None:
    assert choose_file(FILES, quant) == chosen


def test_without_a_quant_the_usual_ones_and_then_the_first_file() -> None:
    assert choose_file(["a-F16.gguf", "a-Q8_0.gguf"], "") == "a-Q8_0.gguf"
    assert choose_file(["mmproj-F16.gguf", "b-IQ2.gguf", "a-F16.gguf"], "") == "b-IQ2.gguf"
    assert choose_file(["README.md", "mmproj-F16.gguf"], "") == ""


def test_files_in_folders() -> None:
    files = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]

    chosen = choose_file(files, "")

    assert parts_of(chosen, files) == files


def test_all_parts_of_a_split_model() -> None:
    assert parts_of("model-Q4_K_M-00001-of-00002.gguf", FILES) == FILES[3:5]
    assert parts_of("model-F16.gguf", FILES) == ["model-F16.gguf"]


def test_repository_and_quant() -> None:
    assert parse_repo("user/repo:Q4_0") == ("user/repo", "Q4_0")
    assert parse_repo("user/repo") == ("user/repo", "")
    for text in ("repo", "a/b/c", "https://hub/a/b", ""):
        with pytest.raises(HubFailed):
            parse_repo(text)


@pytest.mark.parametrize(
    ("files", "model", "chosen"),
    [
        (["m-Q8_0.gguf"], "m-Q8_0.gguf", ""),
        (["m-Q8_0.gguf", "mmproj.gguf", "mmproj.txt"], "m-Q8_0.gguf", "mmproj.gguf"),
        (["mmproj-m-f32.gguf", "mmproj-m-f16.gguf"], "m-BF16.gguf", "mmproj-m-f16.gguf"),
        (["m-mmproj-F16.gguf", "m-mmproj-Q8_0.gguf"], "m-Q4_K_M.gguf", "m-mmproj-Q8_0.gguf"),
        (["mmproj-1-F16.gguf", "a/mmproj-F32.gguf"], "a/m-F16.gguf", "a/mmproj-F32.gguf"),
        (["mmproj-F16.gguf", "a/m-F16.gguf"], "a/m-F16.gguf", "mmproj-F16.gguf"),
        (["b/mmproj-F16.gguf", "a/b/mmproj-F16.gguf"], "a/m-F16.gguf", ""),
        (["mmproj/m-F16.gguf"], "m-F16.gguf", ""),
    ],
)
def test_the_projector_beside_the_model_is_taken(files: list[str], model: str, chosen: str) -> None:
    assert choose_projector(files, model) == chosen
