"""Random walks over conversations: whatever was done before, an answer is that of a fresh engine.

After every step the answer is compared, at each of its places, with the logprobs of a context that
has nothing but the prompt, computed in the same micro-batches. A walk that fails says what it did.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import models
from tests.engine.walking import Prompt, Walk
from tests.engine.watching import WatchedEngine, WatchedMedia, watched_engine
from tests.media_content import Content, make_image, make_sound
from tests.oracles.greedy_oracle import GreedyOracle, MediaOracle
from tests.projectors import KIND_OF, write_audio_projector, write_projector
from tests.soak import in_soak

from milepost.config import EngineSettings
from milepost.engine.checkpointing import MIN_TOKENS
from milepost.engine.main import make_context
from milepost.engine.media.keys import floor_to_block
from milepost.libllama import Model, ModelParams, open_library
from milepost.libllama.media import Projector, ProjectorParams
from milepost.protocol.messages import TokenLogprob

# Arbitrary; by number of slots, and whether there is memory for all.
SEEDS = {(1, True): 6, (3, True): 8, (3, False): 9}
NUM_STEPS = in_soak(40, 8)
AMPLE_BYTES = 64 << 20
pytestmark = pytest.mark.soak
# With f32 cells and without flash attention the layout of the cells hardly matters. Largest
# difference of two logprobs in walks of some hundred other seeds: 7e-6 (full), 4e-3 (window), 3e-5
# (recurrent), 9e-6 (hybrid). With the default cells it is 0.04, which hides a few wrong values.
SPREADS: dict[models.Kind, float] = {
    "full": 1e-4,
    "window": 0.02,
    "recurrent": 1e-4,
    "hybrid": 1e-4,
}
# Of segments and states: about what one or two of the conversations need.
TIGHT_BYTES: dict[models.Kind, int] = {
    "full": 900_000,
    "window": 600_000,
    "recurrent": 300_000,
    "hybrid": 700_000,
}


# With rows and columns the last one has more tokens than a micro-batch.
IMAGES: list[Content] = [
    *(make_image(1), make_image(2), make_image(3, 48, 48), make_image(4, 160, 144)),
]
SOUNDS: list[Content] = [make_sound(1), make_sound(2, 16000 * 31)]  # the second is two pieces
TIGHT_MEDIA_BYTES = 20_000  # of embeddings: one or two images


@dataclass(frozen=True, slots=True)
class WalkCase:
    """One walk."""

    kind: models.Kind
    seed: int
    num_slots: int
    budget_bytes: int
    swa_full: bool = False

    @property
    def is_ample(self) -> bool:
        return self.budget_bytes == AMPLE_BYTES


@dataclass
class Walker:
    """Does to an engine what a walk says, and compares what comes back."""

    engine: WatchedEngine
    oracle: GreedyOracle
    case: WalkCase
    walk: Walk
    randoms: random.Random
    differences: list[float] = field(default_factory=list)

    def step(self) -> None:
        """Ask one or several requests, or leave one and ask it again."""
        acts = (self._ask, self._leave_prefill, self._leave_reply, self._ask_at_once)
        self.randoms.choices(acts, (6, 2, 1, 3))[0]()

    def _ask(self) -> None:
        prompt = self.walk.next_prompt()
        self.walk.hear(self._ask_and_check(prompt))

    def _leave_prefill(self) -> None:
        """Cancel between or within two batches of a prefill; ask again, now or after another."""
        prompt = self.walk.next_prompt()
        number = self.engine.send(**prompt.fields)
        for _ in range(self.randoms.randint(0, 2)):
            self.engine.step()
        if self.randoms.random() < 0.6:
            self.engine.step_aborted(self.randoms.randint(0, 1))
        self.engine.cancel(number)
        self.engine.wait(number)
        computed = self.engine.context.computed.get(number)
        keys = self.engine.replies[number].prompt
        reached = max(computed.ends, default=0) if computed else 0
        self.walk.done.append(f"  left at {reached} of {len(keys)}")
        reached = floor_to_block(keys, reached)  # what was computed of an image is lost
        self.engine.check_idle()
        if self.randoms.random() < 0.3:
            mine = self.walk.current
            self._ask()
            self.walk.current = mine
        self.walk.hear(self._ask_and_check(prompt, reached))

    def _leave_reply(self) -> None:
        """Cancel within an answer; ask again."""
        prompt = self.walk.next_prompt()
        number = self.engine.send(**prompt.fields, max_tokens=40)
        num_tokens = self.randoms.randint(1, 6)
        while len(self.engine.replies[number].tokens) < num_tokens:
            self.engine.step()
        self.engine.cancel(number)
        self.engine.wait(number)
        self.walk.done.append(f"  left after {num_tokens} tokens of the reply")
        self._check(number)
        self.walk.hear(self._ask_and_check(prompt))

    def _ask_at_once(self) -> None:
        """Send several requests together, equal ones among them; one of them may be left."""
        asked: list[tuple[int, int]] = []
        for _ in range(self.randoms.randint(2, 4)):
            prompt = self.walk.next_prompt()
            for _ in range(self.randoms.choice([1, 1, 2])):
                max_tokens = self.randoms.randint(1, 6)
                number = self.engine.send(**prompt.fields, max_tokens=max_tokens)
                asked.append((self.walk.current, number))
            for _ in range(self.randoms.choice([0, 0, 1, 3])):
                if self.engine.is_busy:
                    self.engine.step()
        numbers = [number for _, number in asked]
        if self.randoms.random() < 0.3:
            self.engine.cancel(self.randoms.choice(numbers))
        self.engine.wait(*numbers)
        self.walk.done.append(f"  {len(asked)} at once")
        self.engine.check_idle()
        for current, number in asked:
            self.walk.current = current
            self.walk.hear(self._check(number))

    def _ask_and_check(self, prompt: Prompt, reached: int = 0) -> list[int]:
        """Return the answer to a prompt of which so many tokens were computed just now."""
        number = self.engine.send(**prompt.fields, max_tokens=self.randoms.randint(2, 5))
        self.engine.wait(number)
        self.engine.check_idle()
        tokens = self._check(number)
        self._check_reuse(number, reached)
        return tokens

    def _check(self, number: int) -> list[int]:
        """Compare an answer with one that reuses nothing; return its tokens."""
        reply, spread = self.engine.replies[number], SPREADS[self.case.kind]
        if not reply.tokens:
            return []
        ends = self.engine.ends_of(number)
        expected = self.oracle.logprobs(reply.prompt.tolist(), ends, reply.tokens, reply.spans)
        for ours, theirs in zip(reply.logprobs, expected, strict=True):
            assert ours.token == self._most_likely(ours)
            difference = max(abs(logprob - theirs[token]) for token, _, logprob in ours.top)
            self.differences.append(difference)
            assert difference < spread, f"{reply.finished}"
        return reply.tokens

    def _most_likely(self, chosen: TokenLogprob) -> int:
        ends = self.engine.context.model.vocab.eog_tokens  # never sampled here
        return next(token for token, _, _ in chosen.top if token not in ends)

    def _check_reuse(self, number: int, reached: int) -> None:
        reply = self.engine.replies[number]
        assert reply.finished is not None
        report = reply.finished.cache
        assert report is not None
        self.walk.done[-1] += f" ({report.source} {report.num_reused}, {report.reason})"
        if not self.case.is_ample:
            return
        if self.case.kind == "full":
            assert report.num_prefilled_twice < MIN_TOKENS  # so few are not kept
        elif MIN_TOKENS <= reached < len(reply.prompt):
            assert reply.num_cached >= reached


@contextlib.contextmanager
def walker(model: Model, case: WalkCase, media: WatchedMedia | None = None) -> Iterator[Walker]:
    """Make an engine, an oracle, and a walk at its begin."""
    settings = EngineSettings(
        ctx_size=768,
        parallel=case.num_slots,
        batch_size=128,
        ubatch_size=64,
        threads=1,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attn="off",
        swa_full=case.swa_full,
        parked_slots=0 if case.num_slots == 1 else -1,  # 0: all others come back from memory
        checkpoint_min_step=48,
        ctx_checkpoints=16,
    )
    randoms = random.Random(case.seed)
    walk = Walk(randoms, keeps_prompt_end=randoms.random() < 0.5)
    walk.images = media.images if media else []
    images = MediaOracle(media.projector, media.images) if media else None
    with (
        make_context(model, settings, 0) as context,
        watched_engine(model, settings, case.budget_bytes, media) as engine,
    ):
        yield Walker(engine, GreedyOracle(context, images), case, walk, randoms)


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize(("num_slots", "is_ample"), SEEDS)
def test_a_walk_never_answers_otherwise(
    tiny_models: dict[models.Kind, Path], kind: models.Kind, num_slots: int, is_ample: bool
) -> None:
    budget_bytes = AMPLE_BYTES if is_ample else TIGHT_BYTES[kind]
    case = WalkCase(kind, SEEDS[num_slots, is_ample], num_slots, budget_bytes)
    take_walk(tiny_models[kind], case)


def test_a_walk_with_the_whole_context_kept_of_window_layers(
    tiny_models: dict[models.Kind, Path],
) -> None:
    take_walk(tiny_models["window"], WalkCase("window", 1, 1, AMPLE_BYTES, swa_full=True))


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize(("num_slots", "is_ample"), SEEDS)
def test_a_walk_with_images_never_answers_otherwise(
    tiny_models: dict[models.Kind, Path],
    tmp_path: Path,
    kind: models.Kind,
    num_slots: int,
    is_ample: bool,
) -> None:
    budget_bytes = AMPLE_BYTES if is_ample else TIGHT_BYTES[kind]
    case = WalkCase(kind, SEEDS[num_slots, is_ample], num_slots, budget_bytes)
    projector_path = write_projector(KIND_OF[kind], tmp_path / "projector.gguf")
    take_walk(tiny_models[kind], case, projector_path)


@pytest.mark.parametrize(("num_slots", "is_ample"), SEEDS)
def test_a_walk_cuts_back_around_images_of_rows_and_columns(
    tmp_path: Path, num_slots: int, is_ample: bool
) -> None:
    path = models.write_model("full_rows", tmp_path / "model.gguf", shape=models.SQUARE)
    budget_bytes = AMPLE_BYTES if is_ample else TIGHT_BYTES["full"]
    case = WalkCase("full", SEEDS[num_slots, is_ample], num_slots, budget_bytes)
    take_walk(path, case, write_projector("qwen3vl", tmp_path / "projector.gguf"))


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_a_walk_with_audio_never_answers_otherwise(
    tiny_models: dict[models.Kind, Path], tmp_path: Path, kind: models.Kind
) -> None:
    projector_path = write_audio_projector(tmp_path / "projector.gguf")
    case = WalkCase(kind, 8, 3, AMPLE_BYTES)
    take_walk(tiny_models[kind], case, projector_path, SOUNDS)


def take_walk(
    path: Path,
    case: WalkCase,
    projector_path: Path | None = None,
    contents: list[Content] = IMAGES,
) -> None:
    """Do all steps of a walk; an error says what was done before it."""
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(open_library(), path, ModelParams()))
        media = None
        if projector_path is not None:
            projector = Projector(model, projector_path, ProjectorParams(False, 1))
            stack.callback(projector.close)
            budget_bytes = AMPLE_BYTES if case.is_ample else TIGHT_MEDIA_BYTES
            media = WatchedMedia(projector, contents, budget_bytes)
        walking = stack.enter_context(walker(model, case, media))
        for _ in range(NUM_STEPS):
            try:
                walking.step()
            except BaseException as error:
                error.add_note(f"{case}\n{walking.walk}")
                raise
