"""Every exception comes out of the engine process as it was raised there."""

from __future__ import annotations

import msgspec
import pytest

from milepost import errors
from milepost.errors import (
    ContextExceeded,
    InvalidRequest,
    MilepostError,
    NotSupported,
    QueueFull,
    TemplateFailed,
)
from milepost.protocol.failure import Failure, describe_failure, error_from

OF_OTHER_ARGUMENTS: dict[type[MilepostError], MilepostError] = {
    ContextExceeded: ContextExceeded(5000, 4096),
    QueueFull: QueueFull(3, 2, 17),
}


def every_error() -> list[MilepostError]:
    """Return one of each class, with all that it can be given."""
    found: list[MilepostError] = []
    for value in vars(errors).values():
        if not (isinstance(value, type) and issubclass(value, MilepostError)):
            continue
        if value in OF_OTHER_ARGUMENTS:
            found.append(OF_OTHER_ARGUMENTS[value])
        elif issubclass(value, InvalidRequest):
            found.append(value("why: é", param="samplers"))
        else:
            found.append(value("why: é"))
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_on_the_other_side(error: MilepostError) -> None:
    sent = msgspec.msgpack.encode(describe_failure(error))
    received = error_from(msgspec.msgpack.decode(sent, type=Failure))
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert vars(received) == vars(error)


def test_the_fields_are_those_that_answers_tell() -> None:
    exceeded = error_from(describe_failure(ContextExceeded(5000, 4096)))
    assert isinstance(exceeded, ContextExceeded)
    assert (exceeded.num_prompt_tokens, exceeded.num_context_tokens) == (5000, 4096)
    full = error_from(describe_failure(QueueFull(3, 2, 17)))
    assert isinstance(full, QueueFull)
    assert full.retry_after_s == 17
    for cls in (InvalidRequest, NotSupported, TemplateFailed):
        refused = error_from(describe_failure(cls("no", param="n")))
        assert isinstance(refused, InvalidRequest)
        assert refused.param == "n"


@pytest.mark.parametrize("kind", ["NoSuchClass", "annotations", "ClassVar", "ValueError"])
def test_what_is_no_error_of_ours_keeps_its_message(kind: str) -> None:
    error = error_from(Failure(kind=kind, message="why"))
    assert type(error) is MilepostError
    assert str(error) == "why"
