"""No sampling settings that the API lets through end the engine process."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.engine.running import RunningEngine, prompt_tokens

from milepost.engine.sampling import SAMPLERS
from milepost.protocol.sampling import SamplingParams

NUM_REQUESTS = 80
LARGEST = 3.4e38
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-6, -1e-6, 100.0, -100.0, LARGEST, -LARGEST, 1e-38)
PARTS = (0.0, 1e-6, 0.5, 0.999999, 1.0)
GRAMMARS = (
    "",
    'root ::= [a-z]+ "."',
    'root ::= "a" | "b" root',
    "root ::= [^\\x00]*",
    'root ::= "é" root?',  # its characters are two tokens each
)
ANY_NUMBER = (
    "dynatemp_range",
    "dynatemp_exponent",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "mirostat_tau",
    "mirostat_eta",
)


def random_params(randoms: random.Random) -> SamplingParams:
    pick = randoms.choice
    fields: dict[str, Any] = {name: pick(NUMBERS) for name in ANY_NUMBER}
    fields |= {name: pick(PARTS) for name in ("top_p", "min_p", "xtc_probability")}
    return SamplingParams(
        samplers=tuple(randoms.choices(list(SAMPLERS), k=randoms.randint(0, 10))),
        seed=pick((0, 1, 2**32 - 2, 2**32 - 1)),
        min_keep=pick((0, 1, 5, 300)),
        temperature=pick((0.0, 1e-38, 1.0, LARGEST)),
        top_k=pick((0, 1, 40, 2**31 - 1)),
        xtc_threshold=pick(PARTS),
        repeat_last_n=pick((-1, 0, 64, 2**31 - 1)),
        dry_base=pick((1.0, 1.75, LARGEST)),
        dry_allowed_length=pick((0, 1, 2**31 - 1)),
        dry_penalty_last_n=pick((-1, 0, 64)),
        dry_sequence_breakers=pick(((), ("\n",), ("a" * 100, ""), ("é",))),
        mirostat=pick((0, 0, 1, 2)),
        adaptive_target=pick((-1.0, 0.0, 1.0)),
        adaptive_decay=pick((0.0, 0.99)),
        logit_bias=tuple(
            (randoms.randrange(323), pick((-math.inf, LARGEST, -LARGEST)))
            for _ in range(pick((0, 0, 1, 300)))
        ),
        ignore_eos=pick((True, False)),
        grammar=pick(GRAMMARS),
        **fields,
    )


def test_extreme_values_never_end_the_process(full: RunningEngine) -> None:
    randoms, pid = random.Random(4), full.supervisor.pid
    for _ in range(NUM_REQUESTS):
        params = random_params(randoms)
        answer = full.ask(prompt_tokens(20, seed=92), max_tokens=10, sampling=params)
        assert answer.end.timings.predicted_n <= 10
        if params.grammar == GRAMMARS[4]:
            assert set(answer.text) <= {"é"}
    assert full.supervisor.pid == pid
    assert full.is_idle
