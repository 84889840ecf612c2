"""Where the prefill of a request is cut, and where its states are kept.

Brings together what the placement policy asks for: the boundaries that the front end found, the
divergences that the tree has seen, and what the memory of the model needs.
"""

from __future__ import annotations

from milepost.cache.match import Match
from milepost.cache.placement import Boundary, PlacementLimits, PlacementRequest, plan_prefill
from milepost.config import EngineSettings
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.sequence import Request


def placement_limits(settings: EngineSettings) -> PlacementLimits:
    """Return what the flags allow a prefill to keep."""
    return PlacementLimits(
        min_step=settings.checkpoint_min_step,
        every_n_tokens=settings.checkpoint_every_n_tokens,
        max_checkpoints=settings.ctx_checkpoints,
    )


def plan_request(
    request: Request, runtime: ModelRuntime, limits: PlacementLimits, match: Match
) -> None:
    """Fill in the cuts and checkpoints of a request that has its slot."""
    traits, context, message = runtime.traits, runtime.context, request.message
    edges = {pos for span in request.spans for pos in (span.start, span.end)}
    request.cuts = sorted(edges)  # a media item is computed in a batch of its own
    if not (traits.has_states and traits.can_restore and runtime.cache.limits.budget_bytes > 0):
        return  # nothing could be kept at a cut
    plan = plan_prefill(
        PlacementRequest(
            start=request.num_cached,
            end=len(request.prompt),
            boundaries=tuple(
                Boundary(found.pos, found.kind) for found in message.prompt.boundaries
            ),
            divergences=match.divergences,
            has_states=traits.has_states,
            num_batch_tokens=context.num_batch_tokens,
            num_ubatch_tokens=context.num_ubatch_tokens,
            limits=limits,
            wants_prompt_end=message.prompt.keeps_prompt_end,
            media=tuple((span.start, span.end) for span in request.spans),
        )
    )
    request.checkpoints = dict(plan.checkpoints)
    request.cuts = sorted({*plan.cuts, *edges})
