"""No value of any field may become a fault of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.soak import in_soak
from tests.unit.api.conftest import Api

from milepost.api.native.schemas import DetokenizeFields, NativeFields, TokenizeFields
from milepost.api.openai.schemas import ChatFields, TextFields

ODD_VALUES = (
    *("null", "true", "false", "-1", "0", "1", "1.5", "1e999", "-1e999", "NaN"),
    *("9" * 30, "9" * 5000, '""', '"x"', '"5"', '"\\ud83d"', '"\\u0000"'),
    *("[]", "{}", "[null]", "[[]]", "[{}]", '["x", 5]', "[[1]]", "[[1, 2, 3]]", '{"x": null}'),
    *('{"type": null}', '{"type": []}', '{"5": {}}', "[" * 50 + "]" * 50),
)
ENDPOINTS: dict[str, Any] = {
    "/v1/chat/completions": ChatFields,
    "/v1/completions": TextFields,
    "/completion": NativeFields,
    "/apply-template": ChatFields,
    "/tokenize": TokenizeFields,
    "/detokenize": DetokenizeFields,
}
FIELDS = [(path, name) for path, model in ENDPOINTS.items() for name in sorted(model.model_fields)]


@pytest.mark.soak
@pytest.mark.parametrize(("path", "name"), FIELDS)
def test_an_odd_value_is_taken_or_refused(api: Api, path: str, name: str) -> None:
    # Each field gets others of them; `make soak` gives all to all.
    values = in_soak(ODD_VALUES, ODD_VALUES[FIELDS.index((path, name)) % 4 :: 4])
    plain = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    plain.pop(name, None)
    rest = json.dumps(plain).removeprefix("{").removesuffix("}")

    with api.connection() as send:
        for value in values:
            body = f'{{"{name}": {value}{", " if rest else ""}{rest}}}'
            response = send("POST", path, content=body.encode())

            assert response.status_code in (200, 400, 404, 501), f"{value}: {response.text}"
            if response.status_code != 200:
                assert response.json()["error"]["message"], value
