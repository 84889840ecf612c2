"""llama-server's endpoints beside the generating ones: props, slots, tokenize, templates."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.http_body import JsonResponse, field_error, parse_body, read_body
from milepost.api.multimodal_prompt import MEDIA_MARKER
from milepost.api.native.completion import generation_settings
from milepost.api.native.schemas import (
    ApplyTemplateAnswer,
    DefaultGenerationSettings,
    DetokenizeAnswer,
    DetokenizeFields,
    Modalities,
    NextTokenShape,
    PieceShape,
    PropsAnswer,
    SlotShape,
    TokenizeAnswer,
    TokenizeFields,
)
from milepost.api.native.slot_actions import act_on_slot
from milepost.api.openai.chat_request import render_prompt
from milepost.api.openai.schemas import ChatFields
from milepost.api.server import ServedModel, Server
from milepost.api.shapes import SYSTEM_FINGERPRINT
from milepost.chat.prompts.raw_prompts import tokenize_mixed
from milepost.chat.vocab import Vocab
from milepost.errors import NotSupported, Unavailable
from milepost.protocol.messages import SlotStatus


def build_native_router(server: Server) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    max_body_bytes = server.settings.max_body_bytes

    @router.get("/props")
    async def props() -> Response:
        return JsonResponse(props_answer(server, server.choose_model()))

    @router.post("/props")
    async def change_props() -> Response:
        raise NotSupported("this server does not support changing global properties")

    @router.get("/slots")
    async def slots(request: Request) -> Response:
        return JsonResponse(await _read_slots(server, request))

    @router.post("/slots/{slot_id}")
    async def change_slot(slot_id: str, request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        action = request.query_params.get("action", "")
        return JsonResponse(await act_on_slot(server, slot_id, action, body))

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        fields = parse_body(TokenizeFields, body)
        answer = await server.preparation.run(
            len(body), lambda: _tokenize(server.choose_model().vocab, fields)
        )
        return JsonResponse(answer)

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        fields = parse_body(DetokenizeFields, await read_body(request, max_body_bytes))
        return JsonResponse(_detokenize(server.choose_model().vocab, fields))

    @router.post("/apply-template")
    async def apply_template(request: Request) -> Response:
        body = await read_body(request, max_body_bytes)
        fields = parse_body(ChatFields, body)
        model = server.choose_model()
        prompt = await server.preparation.run(len(body), lambda: render_prompt(model, fields))
        return JsonResponse(ApplyTemplateAnswer(prompt=prompt.text_with_media_as(MEDIA_MARKER)))

    return router


def props_answer(server: Server, model: ServedModel) -> PropsAnswer:
    """Return what a server is, and does by default with a model."""
    info, templates = model.info, model.prompts.templates
    tool_use = templates.tool_use
    return PropsAnswer(
        default_generation_settings=DefaultGenerationSettings(
            params=generation_settings(model.settings.sampling), n_ctx=info.num_context_tokens
        ),
        total_slots=info.num_parallel,
        model_alias=model.name,
        model_path=Path(model.settings.engine.model_path).name,
        modalities=Modalities(vision=info.has_vision, audio=info.has_audio),
        media_marker=MEDIA_MARKER,
        endpoint_slots=server.settings.slots,
        endpoint_metrics=server.settings.metrics,
        chat_template=templates.default.source,
        chat_template_tool_use=tool_use.source if tool_use else UNSET,
        bos_token=model.vocab.bos_text,
        eos_token=model.vocab.eos_text,
        build_info=SYSTEM_FINGERPRINT,
    )


def slot_shape(slot: SlotStatus, num_context_tokens: int) -> SlotShape:
    """Return a slot as llama-server lists it; texts are never shown."""
    is_processing = slot.state != "idle"
    return SlotShape(
        id=slot.slot_id,
        n_ctx=num_context_tokens,
        is_processing=is_processing,
        state=slot.state,
        id_task=slot.request_id,
        n_prompt_tokens=slot.num_prompt_tokens,
        n_tokens=slot.num_tokens,
        next_token=(NextTokenShape(has_next_token=is_processing, n_decoded=slot.num_decoded),),
    )


async def _read_slots(server: Server, request: Request) -> list[SlotShape]:
    if not server.settings.slots:
        raise NotSupported(
            "This server does not support slots endpoint. Start it with `--slots`"
        )  # llama-server's words: clients look for them
    model = server.choose_model()
    num_context_tokens = model.info.num_context_tokens
    status = await model.engine.get_status()
    shapes = [slot_shape(slot, num_context_tokens) for slot in status.slots]
    if request.query_params.get("fail_on_no_slot") and all(s.is_processing for s in shapes):
        raise Unavailable("no slot available")
    return shapes


def _tokenize(vocab: Vocab, fields: TokenizeFields) -> TokenizeAnswer:
    tokens = tokenize_mixed(
        vocab,
        fields.content,
        add_special=bool(fields.add_special),
        parse_special=fields.parse_special is not False,
    )
    if not fields.with_pieces:
        return TokenizeAnswer(tokens=tuple(tokens))
    return TokenizeAnswer(
        tokens=tuple(
            PieceShape(id=token, piece=_piece_shape(vocab.token_bytes(token))) for token in tokens
        )
    )


def _piece_shape(piece: bytes) -> str | tuple[int, ...]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return tuple(piece)


def _detokenize(vocab: Vocab, fields: DetokenizeFields) -> DetokenizeAnswer:
    last = vocab.num_tokens - 1
    wanted = f"must be a list of tokens between 0 and {last}"
    if not isinstance(fields.tokens, (list, tuple)):
        raise field_error("tokens", wanted, fields.tokens)
    for token in fields.tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= last:
            raise field_error("tokens", wanted, token)
    return DetokenizeAnswer(content=vocab.detokenize(fields.tokens, special=True))
