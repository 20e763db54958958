"""Whether actions and observations keep to their spaces, and what follows when they do not.

Values that no environment can be given (NaN, a Discrete value outside its range) are errors under
every policy. What leaves a declared range is judged by the policy.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Literal, cast, get_args

from rlmesh_gym.errors import CodecError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.codec import Leaves, SpaceCodec
    from rlmesh_gym.server.env.served_env import Warnings


ValidationPolicy = Literal["warn", "strict", "off"]


def resolve_policy(policy: str | None) -> ValidationPolicy:
    """Return the policy asked for, else that of ``RLMESH_VALIDATION_POLICY``, else ``"warn"``."""
    name = (policy or os.environ.get("RLMESH_VALIDATION_POLICY") or "warn").strip().lower()
    if name not in get_args(ValidationPolicy):
        known = ", ".join(get_args(ValidationPolicy))
        raise ConfigurationError(f"unknown validation policy {name!r}; there are {known}")
    return cast("ValidationPolicy", name)


class Conformance:
    """The checks of one session, with its memory of what it has warned of.

    Policy ``"warn"`` tells the client once per kind and path, ``"strict"`` refuses, ``"off"`` does
    not look.
    """

    def __init__(
        self, action_codec: SpaceCodec, observation_codec: SpaceCodec, policy: ValidationPolicy
    ) -> None:
        self.policy = policy
        self._codecs = {"action": action_codec, "observation": observation_codec}
        self._warned: dict[str, set[str]] = {"action": set(), "observation": set()}
        self._left_out: set[str] = set()
        self._lock = threading.Lock()

    def check(
        self, kind: Literal["action", "observation"], leaves: Leaves, lanes: Sequence[int] | None
    ) -> Warnings:
        """Check decoded actions, or what the environment returned; errors name the lane."""
        codec = self._codecs[kind]
        found = codec.out_of_domain(leaves)
        if found:
            raise self._refusal(kind, found[0], lanes)
        warned = self._warned[kind]
        if self.policy == "off" or len(warned) == len(codec.paths):
            return []
        found = codec.out_of_bounds(leaves)
        if not found:
            return []
        if self.policy == "strict":
            raise self._refusal(kind, found[0], lanes)
        with self._lock:
            news = {path for _, path, _ in found} - warned
            warned |= news
        return [
            (row, {"kind": kind, "path": path, "detail": detail})
            for row, path, detail in found
            if path in news
        ]

    def note_left_out(self, errors: Sequence[CodecError]) -> list[dict[str, str]]:
        """Return notes for the client about infos that the wire cannot hold, once per path."""
        with self._lock:
            news = [error for error in errors if error.path not in self._left_out]
            self._left_out.update(error.path for error in news)
        return [
            {
                "kind": "info",
                "path": error.path,
                "detail": f"left out: {str(error).removeprefix(f'{error.path}: ')}",
            }
            for error in news
        ]

    def _refusal(
        self, kind: str, found: tuple[int, str, str], lanes: Sequence[int] | None
    ) -> CodecError:
        row, path, detail = found
        lane = row if lanes is None else lanes[row]
        return CodecError(f"{detail} (the {kind} of lane {lane})", path=path)
