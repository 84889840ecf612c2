"""What a context holds after cuts, forks and aborts, compared with a fresh computation.

Equal to the bit where the cells lie as in the fresh one. A window's cells are reused, so theirs
may lie elsewhere; NOISE bounds what that changes (measured: 0.01 on logits of about 4).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests import models
from tests.binding.conftest import LoadModel

from milepost.errors import ConfigurationError, ContextFull, DecodeAborted
from milepost.libllama import Batch, Context, ContextParams, Model

NUM_CONTEXT, NUM_BATCH, NUM_UBATCH = 2048, 1024, 256
NOISE = 0.05
WRONG = 0.1  # a state that is not the prompt's is off by more (measured: 0.3 to 19)
TOKENS = np.random.default_rng(1).integers(65, 91, NUM_BATCH + 64).astype(np.int32)
CUTTABLE: tuple[models.Kind, ...] = ("full",)
STATEFUL: tuple[models.Kind, ...] = ("recurrent", "hybrid")


@contextlib.contextmanager
def open_context(model: Model, *, num_tokens: int = NUM_CONTEXT) -> Iterator[Context]:
    params = ContextParams(
        num_tokens, NUM_BATCH, NUM_UBATCH, 3, 1, 1
    )  # one thread: others may run beside
    with Context(model, params) as context:
        yield context


def compute(context: Context, tokens: Sequence[int] | np.ndarray, start: int, seq: int) -> None:
    decode(context, fill(context, tokens, start, seq))


def fill(context: Context, tokens: Sequence[int] | np.ndarray, start: int, seq: int) -> Batch:
    batch = Batch(context.model.library, len(tokens))
    batch.add_tokens(tokens, start, seq, wants_last=True)
    return batch


def decode(context: Context, batch: Batch) -> np.ndarray:
    """Return the logits of the last row of a batch."""
    context.decode(batch)
    return context.logits(batch.num_tokens - 1).copy()


def go_on(context: Context, end: int, seq: int = 0, *, other: int = 0) -> np.ndarray:
    """Compute one more token, which depends on all before it."""
    return decode(context, fill(context, TOKENS[end + other : end + other + 1], end, seq))


def fresh(model: Model, *ends: int, other: int = 0) -> np.ndarray:
    """Return the logits of one more token after prompts computed in parts up to `ends`."""
    with open_context(model) as context:
        for start, end in itertools.pairwise((0, *ends)):
            compute(context, TOKENS[start:end], start, 0)
        return go_on(context, ends[-1], other=other)


def difference(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).max())


@pytest.mark.parametrize("kind", models.KINDS)
def test_an_extension_equals_a_fresh_computation(load_model: LoadModel, kind: models.Kind) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        compute(context, TOKENS[:300], 0, 0)
        compute(context, TOKENS[300:400], 300, 0)
        assert context.pos_max(0) == 399
        assert difference(go_on(context, 400), fresh(model, 300, 400)) == 0


@pytest.mark.parametrize("kind", models.KINDS)
def test_what_can_be_cut_goes_on_as_if_never_longer(
    load_model: LoadModel, kind: models.Kind
) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        compute(context, TOKENS[:300], 0, 0)
        compute(context, TOKENS[300:400], 300, 0)
        if kind in STATEFUL:
            assert not context.remove(0, 300)
            assert context.pos_max(0) == 399
            assert difference(go_on(context, 400), fresh(model, 300, 400)) == 0
        elif kind in CUTTABLE:
            assert context.remove(0, 300)
            assert context.pos_max(0) == 299
            assert difference(go_on(context, 300), fresh(model, 300)) == 0


@pytest.mark.parametrize("kind", models.KINDS)
def test_forks_go_on_independently(load_model: LoadModel, kind: models.Kind) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        compute(context, TOKENS[:300], 0, 0)
        context.copy(0, 1)
        assert context.pos_max(1) == 299
        forked = go_on(context, 300, seq=1, other=5)
        original = go_on(context, 300)
        assert difference(forked, fresh(model, 300, other=5)) <= NOISE
        assert difference(original, fresh(model, 300)) <= NOISE
        assert difference(forked, original) > WRONG


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_removed_sequence_leaves_the_others_alone(
    load_model: LoadModel, kind: models.Kind
) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        compute(context, TOKENS[:300], 0, 0)
        context.copy(0, 1)
        go_on(context, 300)
        assert context.remove(0)
        assert context.pos_max(0) == -1
        assert difference(go_on(context, 300, seq=1), fresh(model, 300)) <= NOISE


@pytest.mark.parametrize("kind", models.KINDS)
def test_sequences_in_one_batch_do_not_mix(load_model: LoadModel, kind: models.Kind) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        batch = Batch(model.library, 600)
        batch.add_tokens(TOKENS[:300], 0, 0, wants_last=False)
        batch.add_tokens(TOKENS[300:600], 0, 1, wants_last=False)
        context.decode(batch)
        batch.clear_rows()
        rows = [batch.add_token(int(TOKENS[300]), 300, seq) for seq in (0, 1)]
        context.decode(batch)
        assert difference(context.logits(rows[0]), fresh(model, 300)) <= NOISE
        assert difference(context.logits(rows[1]), context.logits(rows[0])) > WRONG


def test_a_batch_without_room_changes_nothing(load_model: LoadModel) -> None:
    with open_context(load_model("full"), num_tokens=512) as context:
        compute(context, TOKENS[:400], 0, 0)
        with pytest.raises(ContextFull, match="no free cells in the context for a batch of 200"):
            compute(context, TOKENS[:200], 0, 1)
        assert (context.pos_max(0), context.pos_max(1)) == (399, -1)
        assert difference(go_on(context, 400), fresh(load_model("full"), 400)) <= NOISE


def test_clearing_removes_all_sequences(load_model: LoadModel) -> None:
    with open_context(load_model("hybrid")) as context:
        compute(context, TOKENS[:10], 0, 0)
        context.copy(0, 2)
        context.clear_sequences()
        assert [context.pos_max(seq) for seq in range(3)] == [-1, -1, -1]
        assert context.pos_min(0) == -1


def abort_midway(context: Context) -> Iterator[int]:
    """Abort batches of four micro-batches after the first; yield where each says it is."""
    batch = fill(context, TOKENS[:NUM_BATCH], 0, 0)
    started = time.perf_counter()
    context.decode(batch)
    whole_s = time.perf_counter() - started
    for part in (0.4, 0.5, 0.6, 0.45, 0.55, 0.3, 0.7):  # some miss: load may slow a run
        context.clear_sequences()
        timer = threading.Timer(whole_s * part, context.abort_flag.set)
        timer.start()
        with contextlib.suppress(DecodeAborted):
            context.decode(batch)
        timer.join()
        context.abort_flag.clear()
        end = context.pos_max(0) + 1
        if 0 < end < NUM_BATCH:
            yield end


@pytest.mark.parametrize("kind", ["full", "window"])
def test_after_an_abort_attention_goes_on_where_it_is(
    load_model: LoadModel, kind: models.Kind
) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        end = next(abort_midway(context))
        assert end % NUM_UBATCH == 0
        assert difference(go_on(context, end), fresh(model, end)) <= NOISE


@pytest.mark.parametrize("kind", STATEFUL)
def test_after_an_abort_a_recurrent_state_is_lost(load_model: LoadModel, kind: models.Kind) -> None:
    """`pos_max` counts the aborted micro-batch as done, but its state is half computed.

    One that was aborted in its last layer is nearly right, so not every abort shows it.
    """
    model = load_model(kind)
    with open_context(model) as context:
        assert any(
            difference(go_on(context, end), fresh(model, end)) > WRONG
            for end in abort_midway(context)
        )


@pytest.mark.parametrize("kind", models.KINDS)
def test_after_an_abort_a_cleared_sequence_is_as_new(
    load_model: LoadModel, kind: models.Kind
) -> None:
    model = load_model(kind)
    with open_context(model) as context:
        compute(context, TOKENS[:300], 0, 1)
        context.abort_flag.set()
        with pytest.raises(DecodeAborted, match="a batch of 300 tokens was aborted"):
            compute(context, TOKENS[:300], 0, 0)
        context.abort_flag.clear()
        context.remove(0)
        compute(context, TOKENS[:300], 0, 0)
        for seq in (0, 1):
            assert difference(go_on(context, 300, seq=seq), fresh(model, 300)) <= NOISE


def test_the_flag_is_read_without_python(load_model: LoadModel) -> None:
    with open_context(load_model("full")) as context:
        assert not context.abort_flag.is_set()
        context.abort_flag.set()
        assert context.abort_flag.is_set()
        context.abort_flag.clear()
        compute(context, TOKENS[:10], 0, 0)


def test_a_context_that_cannot_be_made_says_so(load_model: LoadModel) -> None:
    params = ContextParams(
        256, 64, 64, 1, 1, 1, cache_type_k="q4_0", cache_type_v="q4_0", flash_attn="off"
    )
    with pytest.raises(ConfigurationError, match="cannot make a context of 256 tokens"):
        Context(load_model("full"), params)
