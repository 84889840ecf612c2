"""What happens to a sampled token: text, stop conditions, and the messages that carry both.

Called for each sequence whose next logits are ready. Decides whether the sequence goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from milepost.arrays import Logits
from milepost.engine.reporting import Reporter
from milepost.engine.sampling import token_logprob
from milepost.engine.sequence import Request, Sequence
from milepost.libllama import NO_TOKEN, Context
from milepost.protocol.cache import CacheReport
from milepost.protocol.messages import (
    Delta,
    Finished,
    FinishReason,
    Message,
    Timings,
)

logger = logging.getLogger(__name__)


class Decoder:
    """Samples the next token of a sequence and sends what it means."""

    def __init__(
        self,
        context: Context,
        reporter: Reporter,
        send: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._vocab = context.model.vocab
        self._reporter = reporter
        self._send = send
        self._clock = clock

    def step(self, sequence: Sequence, row: int) -> FinishReason | None:
        """Sample from a row of the last batch; return why the sequence is finished, if it is.

        Sends a Delta when there is text; the caller sends the Finished.
        """
        if sequence.request.message.params.max_tokens == 0:
            return "limit"
        token = self._choose(sequence, lambda: sequence.sampler.sample(row))
        return self._take(sequence, token, row)

    def step_from(self, sequence: Sequence, logits: Logits) -> FinishReason | None:
        """Do the same with logits that were kept, float32 of shape (num_vocab,)."""
        if sequence.request.message.params.max_tokens == 0:
            return "limit"
        token = self._choose(sequence, lambda: sequence.sampler.sample_from(logits))
        return self._take(sequence, token, logits)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Send the rest of the text, and the Finished."""
        rest = sequence.stop.flush()
        # Tokens that only spelled a stop string are as unsent as their text.
        if rest or (sequence.unsent_tokens and reason != "stop_string"):
            self._send_delta(sequence, rest)
        report = self._reporter.report(sequence.request) if sequence.index == 0 else None
        self._send(finished_message(sequence, reason, self._clock(), report))

    def _choose(self, sequence: Sequence, sample: Callable[[], int]) -> int:
        """Return the next token: a sampled one, unless the reasoning must end."""
        budget = sequence.budget
        if budget is None or sequence.detokenizer.is_inside_character:
            return sample()
        token = budget.next_forced()
        if token is None:
            return sample()
        if not sequence.sampler.force(token):
            budget.give_up()
            return sample()
        budget.note_forced()
        return token

    def _take(self, sequence: Sequence, token: int, logits: int | Logits) -> FinishReason | None:
        """Add a sampled token; `logits` are a row of the last batch, or the values themselves."""
        if sequence.num_decoded == 0:
            sequence.decode_started_s = self._clock()
        sequence.num_decoded += 1
        if token == NO_TOKEN and sequence.sampler.failure:
            logger.warning("a constraint ends an answer: %s", sequence.sampler.failure)
            return "limit"  # what was said so far is no whole answer
        if token == NO_TOKEN or token in self._vocab.eog_tokens:
            return "eos"
        sequence.append(token)
        self._note_token(sequence, token, logits)
        message = sequence.request.message
        is_shown = message.params.special or token in message.prompt.shown_tokens
        token_bytes = self._vocab.token_bytes(token, special=is_shown)
        text = sequence.stop.feed(sequence.detokenizer.feed(token_bytes))
        if sequence.budget is not None:
            sequence.budget.note(self._vocab.token_bytes(token))
        if text:
            self._send_delta(sequence, text)
        return self._finish_reason(sequence)

    def _note_token(self, sequence: Sequence, token: int, logits: int | Logits) -> None:
        sequence.unsent_tokens.append(token)
        num_top = sequence.request.message.params.num_logprobs
        if num_top >= 0:
            if isinstance(logits, int):
                logits = self._context.logits(logits)
            sequence.unsent_logprobs.append(
                token_logprob(logits, token, num_top, self._vocab.token_bytes)
            )

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        max_tokens = sequence.request.message.params.max_tokens
        if sequence.stop.found:
            return "stop_string"
        if 0 <= max_tokens <= sequence.num_decoded:
            return "limit"
        if sequence.num_tokens > self._context.num_context_tokens:
            return "context_full"  # the token just sampled has no cell to go to
        return None

    def _send_delta(self, sequence: Sequence, text: str) -> None:
        self._send(
            Delta(
                request_id=sequence.request.request_id,
                choice=sequence.index,
                text=text,
                tokens=tuple(sequence.unsent_tokens),
                logprobs=tuple(sequence.unsent_logprobs),
            )
        )
        sequence.unsent_tokens.clear()
        sequence.unsent_logprobs.clear()


def cancelled_message(request: Request, index: int) -> Finished:
    """Return the only message of a sequence that was cancelled before it had a slot."""
    return Finished(
        request_id=request.request_id,
        choice=index,
        reason="cancelled",
        num_prompt_tokens=len(request.prompt),
        timings=Timings(cache_n=0, prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0),
    )


def finished_message(
    sequence: Sequence, reason: FinishReason, now_s: float, report: CacheReport | None
) -> Finished:
    """Return the last message of a sequence."""
    request = sequence.request
    prefill_end_s = request.prefill_ended_s or now_s
    prefill_ms = 1000 * (prefill_end_s - request.prefill_started_s)
    decode_ms = 1000 * (now_s - sequence.decode_started_s) if sequence.num_decoded else 0.0
    return Finished(
        request_id=request.request_id,
        choice=sequence.index,
        reason=reason,
        stop_string=sequence.stop.found,
        num_prompt_tokens=len(request.prompt),
        timings=Timings(
            cache_n=request.num_cached,
            prompt_n=len(request.prompt) - request.num_cached,
            prompt_ms=prefill_ms,
            predicted_n=sequence.num_decoded,
            predicted_ms=decode_ms,
        ),
        cache=report,
    )
