"""The agent day is the same everywhere, and has in it what makes caches lose."""

import hashlib
import json
import struct
from base64 import b64decode
from pathlib import Path

import pytest
from benchmarks.workloads.agent_day import make_agent_day
from benchmarks.workloads.material import Material
from benchmarks.workloads.pictures import draw_screenshot

from milepost.traces.trace import Trace, TraceRequest, read_trace, write_trace

# Results of different days cannot be compared, so a new day is a decision: record all of them anew.
DIGEST = "eb257af55482d0b2c4a735eac0d831ee71e3307f85db0b669099bbcc0e785433"


@pytest.fixture(scope="module")
def day() -> Trace:
    return make_agent_day()


@pytest.fixture(scope="module")
def requests(day: Trace) -> list[TraceRequest]:
    return list(day.requests())


def of_kind(requests: list[TraceRequest], kind: str) -> list[TraceRequest]:
    return [request for request in requests if request.kind == kind]


def test_the_day_has_the_same_bytes_everywhere(day: Trace, tmp_path: Path) -> None:
    write_trace(tmp_path / "day.jsonl", day)
    assert hashlib.sha256((tmp_path / "day.jsonl").read_bytes()).hexdigest() == DIGEST


def test_another_seed_is_another_day(day: Trace) -> None:
    other = make_agent_day(seed=2)
    assert other.threads != day.threads


def test_a_written_day_reads_back(day: Trace, requests: list[TraceRequest], tmp_path: Path) -> None:
    write_trace(tmp_path / "day.jsonl", day)
    assert list(read_trace(tmp_path / "day.jsonl").requests()) == requests


def test_size_of_the_day(requests: list[TraceRequest]) -> None:
    assert 150 <= len(requests) <= 250
    assert max(len(json.dumps(request.messages)) for request in requests) < 120_000
    times = [request.t for request in requests]
    assert times == sorted(times)
    assert 8 * 3600 > times[-1] > 6 * 3600


def test_every_kind_of_request_occurs(requests: list[TraceRequest]) -> None:
    kinds = {request.kind for request in requests}
    assert kinds == {
        *("title", "user_turn", "tool_step", "subagent", "corrected", "side_branch"),
        *("compaction", "cancelled", "retry", "image"),
    }


def test_subagents_take_turns_and_share_the_system_prompt(requests: list[TraceRequest]) -> None:
    helpers = [request for request in requests if request.session.startswith("harbour/helper")]
    assert [request.session[-1] for request in helpers[:4]] == ["1", "2", "1", "2"]
    main = next(request for request in requests if request.session == "harbour")
    assert all(request.messages[0] == main.messages[0] for request in helpers)
    assert all(request.tools == main.tools for request in helpers)


def test_titles_have_no_tools_and_another_system_prompt(requests: list[TraceRequest]) -> None:
    titles = of_kind(requests, "title")
    assert [request.tools for request in titles] == [[], [], []]
    assert len({request.messages[0]["content"] for request in titles}) == 1


def test_a_correction_takes_the_place_of_a_message(requests: list[TraceRequest]) -> None:
    for corrected in of_kind(requests, "corrected"):
        earlier = [
            request
            for request in requests[: corrected.id]
            if request.session == corrected.session
            and request.messages[: len(corrected.messages) - 1] == corrected.messages[:-1]
            and len(request.messages) >= len(corrected.messages)
        ]
        assert earlier
        assert all(
            request.messages[len(corrected.messages) - 1] != corrected.messages[-1]
            for request in earlier
        )


def test_the_session_returns_from_its_side_branch(requests: list[TraceRequest]) -> None:
    (branch,) = of_kind(requests, "side_branch")
    (returned,) = (request for request in requests if request.markers.get("returned"))
    before = requests[branch.id - 1]
    assert branch.messages[:-1] == before.messages[: len(branch.messages) - 1]
    assert returned.messages[: len(before.messages)] == before.messages
    assert branch.messages[-1] not in returned.messages


def test_a_compaction_keeps_the_system_prompt_and_the_last_messages(
    requests: list[TraceRequest],
) -> None:
    compaction = of_kind(requests, "compaction")[0]
    after = requests[compaction.id + 1]
    assert after.messages[0] == compaction.messages[0]
    assert compaction.reply["content"] in after.messages[1]["content"]
    assert after.messages[2:] == compaction.messages[-1 - len(after.messages[2:]) : -1]
    assert after.messages[2]["role"] != "tool"


def test_the_server_restarts_once_at_noon(requests: list[TraceRequest]) -> None:
    (noon,) = (request for request in requests if request.has_restart_before)
    assert noon.session == "harbour"
    assert requests[noon.id - 1].t < 4 * 3600 <= noon.t


def test_the_cancelled_prompt_is_sent_again_as_it_was(requests: list[TraceRequest]) -> None:
    (cancelled,) = of_kind(requests, "cancelled")
    (retry,) = of_kind(requests, "retry")
    assert cancelled.cancel_after_fraction == 0.6
    assert retry.id == cancelled.id + 1
    assert retry.messages == cancelled.messages
    assert len(retry.messages[-1]["content"]) > 15_000


def test_afternoons_strip_old_reasoning_and_move_the_reminder(
    requests: list[TraceRequest],
) -> None:
    noon = next(request.id for request in requests if request.has_restart_before)
    for request in requests[noon:]:
        if request.session != "harbour" or request.needs:
            continue
        *_, last_user = (i for i, m in enumerate(request.messages) if m["role"] == "user")
        assert not any("reasoning_content" in m for m in request.messages[:last_user])
        reminded = [
            i for i, m in enumerate(request.messages) if "<system-reminder>" in m["content"]
        ]
        assert reminded == [last_user]


def test_mornings_keep_everything_as_it_was_sent(requests: list[TraceRequest]) -> None:
    noon = next(request.id for request in requests if request.has_restart_before)
    assert not any("<system-reminder>" in str(request.messages) for request in requests[:noon])
    second = of_kind(requests[:noon], "user_turn")[1]
    assert any("reasoning_content" in message for message in second.messages)


def test_tool_results_follow_their_calls(requests: list[TraceRequest]) -> None:
    for request in requests:
        open_calls: list[str] = []
        for message in request.messages:
            if message["role"] == "tool":
                assert message["tool_call_id"] == open_calls.pop(0)
            else:
                assert not open_calls
                open_calls = [call["id"] for call in message.get("tool_calls", ())]
        assert not open_calls


def test_only_image_requests_need_images(requests: list[TraceRequest]) -> None:
    marked = [request for request in requests if request.needs]
    with_images = [request for request in requests if "image_url" in str(request.messages)]
    assert [request.needs for request in marked] == ["images", "images"]
    assert marked == with_images


def test_the_second_project_has_another_system_prompt(requests: list[TraceRequest]) -> None:
    prompts = {
        request.session: request.messages[0]["content"]
        for request in requests
        if request.session in ("harbour", "tidewatch")
    }
    assert prompts["harbour"] != prompts["tidewatch"]
    assert prompts["harbour"][:2000] == prompts["tidewatch"][:2000]


def test_the_screenshot_is_a_png_of_its_size() -> None:
    data = b64decode(draw_screenshot(64, 32).partition(",")[2])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (64, 32)


@pytest.mark.parametrize("language", ["python", "typescript"])
def test_material_leaves_no_gap_open(language: str) -> None:
    material = Material("harbour", language, seed=3)  # type: ignore[arg-type]
    place = material.choose_place()
    text = material.source_file(place, 60) + material.log(100) + material.prose(100)
    assert "$" not in text.replace("$" + "{path}", "")
