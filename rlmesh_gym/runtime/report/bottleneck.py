"""What bound a run: where its time went, in one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlmesh_gym.runtime.report.runtime_report import Bottleneck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlmesh_gym.runtime.telemetry import CallTiming

__all__ = ["TimeShares"]

_NAMES = {
    "env": "the environment",
    "wire": "the wire",
    "policy": "the policy",
    "loop": "the run loop itself",
}
_ADVICE = {
    "env": "more lanes or endpoints would help",
    "wire": "a longer execution horizon, or endpoints nearer by, would help",
    "policy": "a longer execution horizon, or a faster model, would help",
    "loop": "hooks and transforms would be the first place to look",
}


def _work_ns(timing: CallTiming) -> int | None:
    """Return what an endpoint spent on its user's code, queueing included; None if it says nothing.

    Reading and writing messages count as the wire's cost, on whichever machine they happen.
    """
    if timing.endpoint_ns is not None:
        return timing.endpoint_ns - (timing.decode_ns or 0) - (timing.encode_ns or 0)
    return timing.user_ns


@dataclass
class TimeShares:
    """Adds up where a run's time goes, in seconds.

    Attributes:
        env: The environments at work.
        policy: The model at work, waiting in its queue included.
        wire: Waiting for calls while neither was at work.
        env_wait: Waiting for env calls, wire included.
        policy_wait: Waiting for the model, wire included.
    """

    env: float = 0.0
    policy: float = 0.0
    wire: float = 0.0
    env_wait: float = 0.0
    policy_wait: float = 0.0

    def add_env(self, waited: float, timings: Sequence[CallTiming]) -> None:
        """Take in calls that were waited for together, ``waited`` seconds in all."""
        work = self._work(waited, timings)
        self.env += work
        self.env_wait += waited
        self.wire += waited - work

    def add_policy(self, waited: float, timings: Sequence[CallTiming]) -> None:
        """Take in calls that were waited for together, ``waited`` seconds in all."""
        work = self._work(waited, timings)
        self.policy += work
        self.policy_wait += waited
        self.wire += waited - work

    @staticmethod
    def _work(waited: float, timings: Sequence[CallTiming]) -> float:
        known = [work for timing in timings if (work := _work_ns(timing)) is not None]
        if not known:
            return waited  # Nobody says what part of it was the wire.
        # Endpoints work side by side, so the slowest is what was waited for.
        return min(waited, max(0.0, max(known) / 1e9))

    def bottleneck(self, duration: float) -> Bottleneck:
        """Say what bound a run whose loop took ``duration`` seconds."""
        parts = {"env": self.env, "wire": self.wire, "policy": self.policy}
        parts["loop"] = max(0.0, duration - sum(parts.values()))
        total = sum(parts.values())
        if total <= 0 or self.env_wait + self.policy_wait <= 0:
            return Bottleneck(
                "Nothing was stepped, so nothing bound this run.", dict.fromkeys(parts, 0.0)
            )
        shares = {name: seconds / total for name, seconds in parts.items()}
        ranked = sorted(shares, key=lambda name: -shares[name])
        first, rest = ranked[0], ranked[1:]
        others = ", ".join(f"{_NAMES[name]} {shares[name]:.0%}" for name in rest)
        sentence = (
            f"{_NAMES[first].capitalize()} bound this run with {shares[first]:.0%} of its time "
            f"({others}); {_ADVICE[first]}."
        )
        return Bottleneck(sentence, shares)
