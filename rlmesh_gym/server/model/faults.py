"""In-band errors of a model server: which code, what text, and their wire form.

Inside the server a failure travels as :class:`rlmesh_gym.errors.ModelError`; this module makes and
encodes them. ``is_recoverable`` says that the session goes on as if the request had not been made.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from rlmesh_gym._proto.model.v1 import interaction_pb2
from rlmesh_gym.errors import Error, ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence


_CODES = {
    name.removeprefix("MODEL_ERROR_CODE_")
    for name, number in interaction_pb2.ModelErrorCode.items()
    if number
}
# A response must stay far below the message limit whatever the model puts in its exception.
_MAX_MESSAGE = 4_000
_MAX_DEBUG_INFO = 32_000


def invalid(
    message: str, *, recoverable: bool = True, env_id: str = "", episode_ids: Sequence[str] = ()
) -> ModelError:
    """The request does not hold together. Malformed envelopes are not recoverable, bad rows are."""
    return ModelError(
        message,
        code="INVALID_REQUEST",
        is_recoverable=recoverable,
        env_id=env_id,
        episode_ids=episode_ids,
    )


def not_configured(env_id: str) -> ModelError:
    """The env id has no adapter: it was never resolved, or was released."""
    return ModelError(
        f"env {env_id!r} has no adapter here: it was never resolved, or was released; "
        "send ResolveAdapter for it first",
        code="NOT_CONFIGURED",
        is_recoverable=True,
        env_id=env_id,
    )


def unsupported(message: str, *, env_id: str = "") -> ModelError:
    """The request is well formed, but this server does not do that."""
    return ModelError(message, code="UNSUPPORTED", is_recoverable=True, env_id=env_id)


def closed() -> ModelError:
    """The server is stopping."""
    return ModelError("the model server is stopping", code="CLOSED", is_recoverable=False)


def model_raised(
    error: BaseException,
    operation: str,
    *,
    env_id: str = "",
    episode_ids: Sequence[str] = (),
    signature: str = "",
) -> ModelError:
    """Turn what user code raised into an answer that names it and its input.

    User code that raises a :class:`ModelError` chooses the code and whether it is recoverable;
    everything else is INTERNAL and recoverable. ``signature`` tells shapes and dtypes of the input.
    """
    code, recoverable = "INTERNAL", True
    kind = f"{type(error).__name__}: "
    if isinstance(error, ModelError):
        recoverable = error.is_recoverable
        if error.code in _CODES:
            code = error.code
            kind = ""
        elif error.code != "UNSPECIFIED":
            kind = f"unknown code {error.code!r}, there are {', '.join(sorted(_CODES))}: "
    text = f"{operation} failed: {kind}{_text(error)}"
    if len(text) > _MAX_MESSAGE:
        text = f"{text[:_MAX_MESSAGE]}…"
    where = [f"env {env_id!r}"] if env_id else []
    if episode_ids:
        # A wide batch names its first episodes; all of them are known to the asker.
        shown = ", ".join(episode_ids[:4]) + (", …" if len(episode_ids) > 4 else "")  # noqa: PLR2004
        where.append(f"episodes {shown}")
    if signature:
        where.append(f"input {signature}")
    return ModelError(
        f"{text} ({'; '.join(where)})" if where else text,
        operation=operation,
        code=code,
        is_recoverable=recoverable,
        debug_info="".join(traceback.format_exception(error))[-_MAX_DEBUG_INFO:],
        env_id=env_id,
        episode_ids=episode_ids,
    )


def encode_fault(error: BaseException, operation: str) -> interaction_pb2.ModelError:
    """Encode a failure; anything but a :class:`ModelError` counts as the server's own fault."""
    if not isinstance(error, ModelError):
        error = (
            ModelError(_text(error), code="INTERNAL", is_recoverable=True)
            if isinstance(error, Error)
            else model_raised(error, operation)
        )
    return interaction_pb2.ModelError(
        code=interaction_pb2.ModelErrorCode.Value(f"MODEL_ERROR_CODE_{error.code}"),
        message=_clean(str(error)),
        is_recoverable=error.is_recoverable,
        debug_info=_clean(error.debug_info),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # An exception that cannot be printed must still be answered.
        return "(it cannot be printed)"


def _clean(text: str) -> str:
    # Exceptions may carry lone surrogates (undecodable file names), which protobuf refuses.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
