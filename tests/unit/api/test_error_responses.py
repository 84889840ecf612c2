from __future__ import annotations

import inspect
import json

import pytest

from milepost import errors
from milepost.api.error_responses import error_response
from milepost.errors import ContextExceeded, InvalidRequest, MilepostError, QueueFull


def all_error_classes() -> list[type[MilepostError]]:
    """Every error there is."""
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [cls for cls in classes if issubclass(cls, MilepostError)]


def make(cls: type[MilepostError]) -> MilepostError:
    arguments: dict[type[MilepostError], tuple[int, ...]] = {
        ContextExceeded: (70, 64),
        QueueFull: (8, 4, 7),
    }
    return cls(*arguments.get(cls, ("it went wrong",)))


@pytest.mark.parametrize("cls", all_error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_has_an_answer(cls: type[MilepostError]) -> None:
    error = make(cls)

    response = error_response(error)

    body = json.loads(bytes(response.body))["error"]
    assert response.status_code == body["code"] == cls.http_status
    assert body["type"] == cls.kind
    assert body["message"] == str(error)
    assert body["param"] is None
    assert 400 <= response.status_code < 600
    assert ("retry-after" in response.headers) == (response.status_code == 503)


def test_the_tree_in_the_docstring_lists_every_error_with_its_status() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if "── " in line]
    listed = {
        name: int(status) for name, status, *_ in (line.split("── ")[1].split() for line in lines)
    }

    expected = {cls.__name__: cls.http_status for cls in all_error_classes()}
    del expected["MilepostError"]
    assert listed == expected


def test_a_parameter_is_named() -> None:
    response = error_response(InvalidRequest("no", param="top_k"))

    assert json.loads(bytes(response.body))["error"]["param"] == "top_k"


def test_a_prompt_that_is_too_long_has_both_numbers() -> None:
    body = json.loads(bytes(error_response(ContextExceeded(70, 64)).body))["error"]

    assert (body["n_prompt_tokens"], body["n_ctx"]) == (70, 64)
    assert body["type"] == "exceed_context_size_error"


def test_a_full_queue_says_how_long_it_is_and_when_to_ask_again() -> None:
    response = error_response(QueueFull(8, 4, 7))

    message = json.loads(bytes(response.body))["error"]["message"]
    assert message.startswith("the queue is full, with 8 waiting for 4 slots")
    assert "try again in 7 s" in message
    assert "--max-waiting" in message
    assert response.headers["retry-after"] == "7"


def test_an_exception_that_is_not_ours_tells_nothing() -> None:
    response = error_response(ValueError("secret path /etc/x"))

    assert response.status_code == 500
    assert b"secret" not in bytes(response.body)
