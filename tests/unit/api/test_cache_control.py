"""`/requests` and `/cache` over a fake engine."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest
from tests.fakes.engine import REPORT, delta, finished
from tests.unit.api.conftest import Api

from milepost.api.cache_sentence import (
    REASONS,
    REPLY_OUTCOMES,
    SOURCES,
    explain,
    explain_replies,
)
from milepost.api.gate import RequestHistory, RequestRecord
from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.prompts.prepare import ToolsMemory
from milepost.chat.prompts.reply_matching import ReplyCounts
from milepost.config import ServerSettings, Settings
from milepost.errors import EngineDied
from milepost.protocol.cache import (
    CacheReason,
    CacheReport,
    Divergence,
    RestoreKind,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "cache-report.md"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_the_latest_request_comes_first(api: Api) -> None:
    with api.connection() as send:
        chat_id = send("POST", "/v1/chat/completions", json=CHAT).json()["id"]
        text_id = send("POST", "/v1/completions", json={"prompt": "a"}).json()["id"]
        send("POST", "/completion", json={"prompt": "b"})
        send("GET", "/v1/models")

        native, text, chat = send("GET", "/requests").json()["requests"]

    assert (native["path"], text["path"]) == ("/completion", "/v1/completions")
    assert (text["id"], chat["id"]) == (text_id, chat_id)
    assert native["id"].startswith("cmpl-")
    assert chat["time"] > 1.7e9
    assert chat["ms"] >= 0
    assert {**chat, "time": 0, "ms": 0} == {
        "id": chat_id,
        "time": 0,
        "path": "/v1/chat/completions",
        "status": 200,
        "is_running": False,
        "prompt_tokens": 21,
        "reused_tokens": 4,
        "completion_tokens": 3,
        "source": "ram",
        "reason": "branch",
        "ms": 0,
    }


def test_why_tells_facts_from_their_interpretation(api: Api) -> None:
    with api.connection() as send:
        chat_id = send("POST", "/v1/chat/completions", json=CHAT).json()["id"]

        answer = send("GET", f"/requests/{chat_id}/why").json()

    assert answer["request"]["id"] == chat_id
    assert answer["prompts"] == [
        {
            "facts": {
                "prompt_tokens": 10,
                "known_tokens": 5,
                "reused_tokens": 4,
                "source": "ram",
                "restored_bytes": 2_500_000,
                "restore_ms": 1.25,
                "prefilled_tokens": 6,
                "prefilled_twice_tokens": 1,
                "prefill_chunks": 2,
                "media": 0,
                "media_encoded": 0,
                "checkpoints": 1,
                "failed_restores": 0,
                "refused_sources": 0,
                "divergence": {
                    "position": 5,
                    "message_index": 2,
                    "role": "user",
                    "prompt_excerpt": "new words",
                    "known_excerpt": "old words",
                },
            },
            "interpretation": {
                "reason": "branch",
                "sentence": "4 of 10 prompt tokens were reused from memory (2.5 MB in 1.2 ms); "
                "6 were computed, 1 of them again. It takes another way than earlier requests "
                "from token 5 in message 2 (user) on.",
            },
        }
    ]


def test_a_stream_is_explained_as_well(api: Api) -> None:
    with api.connection() as send:
        body = {**CHAT, "stream": True}
        text = send("POST", "/v1/chat/completions", json=body).text
        found = re.search(r"chatcmpl-\w+", text)
        assert found is not None

        answer = send("GET", f"/requests/{found[0]}/why").json()

    assert answer["prompts"][0]["interpretation"]["reason"] == "branch"


def test_every_prompt_of_a_request_has_its_report(api: Api) -> None:
    api.engine.steps = (delta("a"), finished(), delta("b"), finished(choice=1))
    with api.connection() as send:
        body = {"prompt": ["one", "two"], "n": 2}
        text_id = send("POST", "/v1/completions", json=body).json()["id"]

        answer = send("GET", f"/requests/{text_id}/why").json()

    assert len(answer["prompts"]) == 2
    assert answer["request"]["reused_tokens"] == 8


def test_a_request_that_failed_has_no_report(api: Api) -> None:
    api.engine.steps = (EngineDied("gone"),)
    with api.connection() as send:
        send("POST", "/v1/chat/completions", json=CHAT)
        (request,) = send("GET", "/requests").json()["requests"]
        answer = send("GET", f"/requests/{request['id']}/why").json()

    assert (request["status"], request["reason"], request["source"]) == (503, None, None)
    assert answer["prompts"] == []


def test_an_unknown_request(api: Api) -> None:
    responses = [
        api.get("/requests/chatcmpl-0/why"),
        api.post("/cache/pin", request_id="chatcmpl-0"),
        api.post("/cache/drop", request_id="chatcmpl-0"),
    ]

    assert [response.status_code for response in responses] == [404, 404, 404]
    assert "GET /requests lists them" in responses[0].json()["error"]["message"]


def test_what_the_cache_holds(api: Api) -> None:
    answer = api.get("/cache").json()

    assert answer["kv_cache"] == {"tokens": 35}
    assert answer["ram"] == {
        "bytes": 500,
        "budget_bytes": 1000,
        "segments": 1,
        "segment_bytes": 400,
        "checkpoints": 1,
        "checkpoint_bytes": 100,
    }
    assert answer["tree"]["nodes"] == [
        {
            "parent": -1,
            "start": 0,
            "end": 30,
            "saved_until": 20,
            "checkpoints": [[10, "system_end"]],
            "bytes": 500,
            "children": 0,
            "hits": 2,
            "idle_s": 1.5,
            "pins": [10],
        }
    ]
    assert (answer["counters"]["requests"], answer["counters"]["ram_restores"]) == (3, 2)
    assert api.get("/cache?nodes=0").json()["tree"]["nodes"] == []


@pytest.mark.parametrize("nodes", ["-1", "1025", "x", ""])
def test_a_bad_number_of_nodes(api: Api, nodes: str) -> None:
    response = api.get("/cache", params={"nodes": nodes})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "nodes"


def test_the_cache_is_cleared(api: Api) -> None:
    assert api.request("DELETE", "/cache").json() == {"freed_bytes": 500}
    assert api.engine.changes == [("clear", -1)]


def test_conversations_are_pinned_and_dropped_by_the_id_of_an_answer(api: Api) -> None:
    with api.connection() as send:
        send("POST", "/v1/chat/completions", json=CHAT)
        chat_id = send("POST", "/v1/chat/completions", json=CHAT).json()["id"]
        pinned = send("POST", "/cache/pin", json={"request_id": chat_id}).json()
        unpinned = send("POST", "/cache/unpin", json={"request_id": chat_id}).json()
        dropped = send("POST", "/cache/drop", json={"request_id": chat_id}).json()

    assert pinned == {"request_id": chat_id, "pinned": True}
    assert unpinned == {"request_id": chat_id, "pinned": False}
    assert dropped == {"freed_bytes": 500}
    assert api.engine.changes == [("pin", 2), ("unpin", 2), ("drop", 2)]


def test_a_request_that_the_engine_has_forgotten(api: Api) -> None:
    api.engine.knows_requests = False
    with api.connection() as send:
        chat_id = send("POST", "/v1/chat/completions", json=CHAT).json()["id"]
        response = send("POST", "/cache/pin", json={"request_id": chat_id})

    assert response.status_code == 404
    assert chat_id in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"request_id": 5}])
def test_a_body_without_an_id(api: Api, body: dict[str, object]) -> None:
    response = api.request("POST", "/cache/drop", json=body)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "request_id"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/requests"),
        ("GET", "/requests/x/why"),
        ("GET", "/cache"),
        ("DELETE", "/cache"),
        ("POST", "/cache/pin"),
        ("POST", "/cache/unpin"),
        ("POST", "/cache/drop"),
    ],
)
def test_a_key_is_needed(api: Api, method: str, path: str) -> None:
    api.settings = Settings(server=ServerSettings(api_keys=("key",)))

    assert api.request(method, path).status_code == 401
    assert api.engine.changes == []


def test_the_history_is_bounded() -> None:
    history = RequestHistory(max_requests=2)
    for answer_id in "abc":
        history.add(RequestRecord(answer_id=answer_id))

    assert [record.answer_id for record in history.latest()] == ["c", "b"]
    assert history.find_record("a") is None


@pytest.mark.parametrize("reason", typing.get_args(CacheReason))
def test_every_reason_has_a_sentence_and_a_place_in_the_document(reason: CacheReason) -> None:
    report = msgspec.structs.replace(REPORT, reason=reason)

    assert explain(report, 10).endswith(".")
    assert "{" not in explain(report, 10)
    assert f"`{reason}`" in DOCUMENT.read_text("utf-8")


def test_there_is_no_sentence_too_many() -> None:
    assert set(REASONS) == set(typing.get_args(CacheReason))
    assert set(SOURCES) == set(typing.get_args(RestoreKind))


def test_a_sentence_without_reuse_and_without_messages() -> None:
    report = CacheReport(num_prefilled=9, divergence=Divergence(pos=0), reason="branch")

    assert explain(report, 9) == (
        "Nothing of the 9 prompt tokens was reused; 9 were computed. "
        "It takes another way than earlier requests from token 0 on."
    )


def test_tools_are_new_when_the_system_prompt_had_others() -> None:
    memory = ToolsMemory()

    def is_new(system: str, *names: str) -> bool:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return memory.is_new(make_conversation(messages, tools))

    assert not is_new("a", "read")
    assert not is_new("a", "read")
    assert is_new("a", "read", "write")
    assert not is_new("a", "read", "write")
    assert not is_new("b", "read")


def test_the_engine_is_told_of_new_tools(api: Api) -> None:
    tool = {"type": "function", "function": {"name": "read"}}
    with api.connection() as send:
        send("POST", "/v1/chat/completions", json=CHAT)
        send("POST", "/v1/chat/completions", json={**CHAT, "tools": [tool]})

    assert [spec.has_new_tools for spec in api.engine.specs] == [False, True]


def test_replies_that_come_back_are_counted(api: Api) -> None:
    api.settings = Settings(server=ServerSettings(metrics=True))
    question, answer = CHAT["messages"][0], {"role": "assistant", "content": "abc"}
    history = [question, answer, question, {"role": "assistant", "content": "other"}, question]
    with api.connection() as send:
        send("POST", "/v1/chat/completions", json=CHAT)
        answer_id = send("POST", "/v1/chat/completions", json={"messages": history}).json()["id"]

        replies = send("GET", f"/requests/{answer_id}/why").json()["replies"]
        metrics = send("GET", "/metrics").text

    assert replies == {
        "exact": 1,
        "unknown": 1,
        "changed": 0,
        "without_reasoning": 0,
        "written_differently": 0,
        "sentence": "1 of 2 replies have the tokens that were sampled. "
        "Made anew: 1 not sampled here, or too long ago.",
    }
    assert 'milepost_replies_total{outcome="exact"} 1.0\n' in metrics
    assert 'milepost_replies_total{outcome="unknown"} 1.0\n' in metrics


def test_a_prompt_without_a_conversation_has_no_replies(api: Api) -> None:
    with api.connection() as send:
        text_id = send("POST", "/v1/completions", json={"prompt": "a"}).json()["id"]
        assert send("GET", f"/requests/{text_id}/why").json()["replies"] is None


def test_each_outcome_of_a_reply_is_explained_in_words_and_in_the_document() -> None:
    names = [name for name in ReplyCounts.__dataclass_fields__ if name != "exact"]
    assert list(REPLY_OUTCOMES) == names
    text = DOCUMENT.read_text("utf-8")
    assert all(f"`{name}`" in text for name in names)
    assert explain_replies(ReplyCounts()) == "There are no replies of the model in it."
