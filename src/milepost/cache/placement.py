"""Where a prefill keeps states, and where its batches must end for that. Pure.

A state can be kept where a batch ends, and only there. A batch may end after any micro-batch at no
cost; anywhere else it cuts a micro-batch in two, and a micro-batch costs nearly the same however
few tokens it holds. So the places where later requests are most likely to stop sharing the prefix
are met exactly, within a budget of extra micro-batches, and all others are rounded down to the end
of a micro-batch (rounded up, the state would hold tokens that a later request does not share):

    start                    last_user   message_end           end
      |-------|-------|-------|----|-------|---*---|-------|----|
                                   ^       ^                    ^
                              exact cut    rounded down         free: nothing follows

The micro-batches after a cut are counted from the cut.

Images and audio are computed in batches of their own, so their begins and ends are cuts that cost
nothing. States are kept there, and never within.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from milepost.cache.checkpoint import CheckpointKind
from milepost.kinds import BoundaryKind

EXACT_KINDS: tuple[BoundaryKind, ...] = (
    *("system_end", "date", "last_user", "prompt_end", "breakpoint"),
)

# A cut this close after a kept state saves fewer tokens than its micro-batch costs: a micro-batch
# of 32 tokens takes about as long as one of 16. Arbitrary.
MIN_CUT_TOKENS = 16
# States are laid closer to the end of a long prompt than to its begin: their distance is at least
# this part of the way to the end. The smallest that keeps to the number of checkpoints is taken.
SPREADS = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in a prompt where a later request may stop sharing it."""

    pos: int
    kind: BoundaryKind


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """How many states a prefill may keep, and what that may cost."""

    min_step: int = 256  # tokens between states, exact ones excepted
    every_n_tokens: int = 0  # a state about every so many tokens; 0: at boundaries only
    max_checkpoints: int = 32  # 0: none
    extra_share: float = 0.02  # extra micro-batches, of those without any cut
    extra_min: int = 2  # extra micro-batches that are always allowed


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A prefill of the positions [start, end); a state at `start` is at hand already."""

    start: int
    end: int
    boundaries: tuple[Boundary, ...]
    divergences: tuple[int, ...]  # where the tree has seen histories part
    has_states: bool  # False: every position can be restored without a checkpoint
    num_batch_tokens: int
    num_ubatch_tokens: int
    limits: PlacementLimits
    wants_prompt_end: bool  # the template renders history unlike its generation prompt
    media: tuple[tuple[int, int], ...] = ()  # [start, end) of each, ascending: never cut


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What to do on the way; both ascend."""

    cuts: tuple[int, ...]  # positions where a batch must end, inside (start, end)
    checkpoints: tuple[tuple[int, CheckpointKind], ...]  # each at a cut or at `end`
    num_extra_ubatches: int


def plan_prefill(request: PlacementRequest) -> PrefillPlan:
    """Choose the cuts and checkpoints of a prefill."""
    limits = request.limits
    if not request.has_states or limits.max_checkpoints == 0 or request.start >= request.end:
        return PrefillPlan((), (), 0)
    grid = _Grid(request)
    kinds: dict[int, CheckpointKind] = {}
    for pos, kind in _list_exact(request):
        has_room = pos not in kinds and len(kinds) < limits.max_checkpoints - 1
        if has_room and grid.cut_at(pos):
            kinds[pos] = kind
    exact = sorted(kinds)
    rounded = _list_rounded(request, grid, exact)
    for pos in _space_out(sorted(rounded, reverse=True), exact, request):
        kinds[pos] = rounded[pos]
    cuts = tuple(sorted(kinds))
    kinds[request.end] = "prompt_whole"
    return PrefillPlan(cuts, tuple(sorted(kinds.items())), grid.num_extra)


class _Grid:
    """The micro-batches of a prefill with the cuts made so far."""

    def __init__(self, request: PlacementRequest) -> None:
        edges = {pos for span in request.media for pos in span}
        inside = {pos for pos in edges if request.start < pos < request.end}
        self._points = sorted(
            {request.start, request.end} | inside
        )  # where parts begin or end, ascending
        self._media = {start for start, _ in request.media}
        self._num_tokens = min(request.num_ubatch_tokens, request.num_batch_tokens)
        self._num_ideal = self._count()
        limits = request.limits
        self._max_extra = max(limits.extra_min, int(limits.extra_share * self._num_ideal))

    @property
    def num_extra(self) -> int:
        """Micro-batches that the cuts have added."""
        return self._count() - self._num_ideal

    def cut_at(self, pos: int) -> bool:
        """Cut at a position; False, and nothing done, if that is useless or too expensive."""
        index = bisect_right(self._points, pos)
        start = self._points[index - 1]
        if pos == start:  # the beginning or the end of a media item
            return True
        if start in self._media or pos - start < MIN_CUT_TOKENS:
            return False
        self._points.insert(index, pos)
        if self.num_extra <= self._max_extra:
            return True
        del self._points[index]
        return False

    def round_down(self, pos: int) -> int:
        """Return the end of the last micro-batch that ends at or before a position."""
        start = self._points[bisect_right(self._points, pos) - 1]
        if start in self._media:
            return start
        return pos - (pos - start) % self._num_tokens

    def _count(self) -> int:
        parts = zip(self._points, self._points[1:], strict=False)
        return sum(math.ceil((end - start) / self._num_tokens) for start, end in parts)


def _list_exact(request: PlacementRequest) -> Iterable[tuple[int, CheckpointKind]]:
    """Yield the positions to be met exactly, those most worth it first."""
    system_ends = {b.pos for b in request.boundaries if b.kind == "system_end"}
    for pos in reversed(request.divergences):
        if request.start < pos < request.end:
            yield pos, "system_end" if pos in system_ends else "divergence"
    for kind in EXACT_KINDS:
        for boundary in reversed(request.boundaries):
            is_inside = request.start < boundary.pos < request.end
            if is_inside and boundary.kind == kind and _is_wanted(boundary, request):
                yield boundary.pos, kind
    for pos in _list_media_edges(request.media):
        if request.start < pos < request.end:
            yield pos, "media"


def _list_media_edges(media: Sequence[tuple[int, int]]) -> list[int]:
    """Return the begins of all media, which may be replaced, and then the ends, the latest first.

    An end is left out where the next media begins at once.
    """
    starts = [start for start, _ in media]
    followed = {
        end
        for (_, end), start in zip(media, starts[1:], strict=False)
        if start - end < MIN_CUT_TOKENS
    }
    ends = [end for _, end in media if end not in followed]
    return [*reversed(starts), *reversed(ends)]


def _list_rounded(
    request: PlacementRequest, grid: _Grid, exact: Sequence[int]
) -> dict[int, CheckpointKind]:
    """Return the ends of micro-batches that stand for all other boundaries."""
    rounded: dict[int, CheckpointKind] = {}
    step = request.limits.every_n_tokens
    if step > 0:
        for pos in range(request.start - request.start % step + step, request.end, step):
            rounded[grid.round_down(pos)] = "chunk"
    for pos in request.divergences:
        if request.start < pos < request.end:
            rounded[grid.round_down(pos)] = "divergence"
    for boundary in request.boundaries:
        if request.start < boundary.pos < request.end and _is_wanted(boundary, request):
            rounded[grid.round_down(boundary.pos)] = boundary.kind
    return {pos: kind for pos, kind in rounded.items() if pos not in exact}


def _is_wanted(boundary: Boundary, request: PlacementRequest) -> bool:
    return boundary.kind != "prompt_end" or request.wants_prompt_end


def _space_out(
    positions: Sequence[int], exact: Sequence[int], request: PlacementRequest
) -> list[int]:
    """Choose from descending positions as many as the limits allow, the closer the later."""
    fixed = (request.start, *exact, request.end)
    free = [pos for pos in positions if _keeps_step(pos, fixed, request.limits.min_step)]
    num_left = request.limits.max_checkpoints - 1 - len(exact)
    for spread in SPREADS:
        chosen: list[int] = []
        for pos in free:
            gap = max(request.limits.min_step, spread * (request.end - pos), 1)
            if not chosen or chosen[-1] - pos >= gap:
                chosen.append(pos)
        if len(chosen) <= num_left:
            return chosen
    return chosen[:num_left]


def _keeps_step(pos: int, fixed: Sequence[int], min_step: int) -> bool:
    index = bisect_right(fixed, pos)
    return pos - fixed[index - 1] >= max(min_step, 1) and fixed[index] - pos >= min_step
