"""An exception on its way from the engine process to the front end."""

from __future__ import annotations

import msgspec

from milepost import errors
from milepost.errors import MilepostError

CLASSES: dict[str, type[MilepostError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, MilepostError)
}


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of an exception of `milepost.errors`, or of a foreign one."""

    kind: str  # name of its class
    message: str
    # Its attributes, such as `param` and `num_prompt_tokens`; each class says which it has.
    fields: dict[str, int | str | None] = {}


def describe_failure(error: Exception) -> Failure:
    """Return what is sent of an exception."""
    fields = {
        name: value for name, value in vars(error).items() if isinstance(value, int | str | None)
    }
    return Failure(kind=type(error).__name__, message=str(error), fields=fields)


def error_from(failure: Failure) -> MilepostError:
    """Return the exception that was described; a MilepostError instead of one that is not ours.

    Constructors are not called: some make their message of other arguments.
    """
    cls = CLASSES.get(failure.kind, MilepostError)
    error = cls.__new__(cls, failure.message)
    vars(error).update(failure.fields)
    return error
