"""What bound a run: where its time went, in one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlmesh_gym.plain_data import PlainData

if TYPE_CHECKING:
    from collections.abc import Sequence


_NAMES = {
    "env": "the environment",
    "wire": "the wire",
    "policy": "the policy",
    "loop": "the run loop itself",
}
_ADVICE = {
    "env": ("more lanes or endpoints",),
    "wire": ("a longer execution horizon", "endpoints nearer by"),
    "policy": ("a longer execution horizon", "a faster model"),
}


@dataclass(frozen=True)
class Bottleneck(PlainData):
    """What bound the run.

    Attributes:
        sentence: One plain sentence for people.
        shares: Part of the loop's time, without what came before and after it, by ``"env"``,
            ``"wire"``, ``"policy"`` and ``"loop"``; they sum to 1, or are all 0 for a run that did
            nothing.
    """

    sentence: str
    shares: dict[str, float]


@dataclass
class TimeShares:
    """Adds up where a run's time goes, in seconds."""

    env: float = 0.0  # The environments at work.
    policy: float = 0.0  # The model at work, waiting in its queue included.
    env_wait: float = 0.0  # Waiting for env calls, wire included.
    policy_wait: float = 0.0  # Waiting for the model, wire included.

    @property
    def wire(self) -> float:
        """Waiting for calls while neither was at work."""
        return max(0.0, self.env_wait + self.policy_wait - self.env - self.policy)

    def add_env(self, waited: float, work: float) -> None:
        """Take in calls that were waited for together, and the work that was waited for."""
        self.env += work
        self.env_wait += waited

    def add_policy(self, waited: float, work: float) -> None:
        """Take in calls that were waited for together, and the work that was waited for."""
        self.policy += work
        self.policy_wait += waited

    def bottleneck(self, duration: float, *, longer_horizon_helps: bool = True) -> Bottleneck:
        """Say what bound a run whose loop took ``duration`` seconds.

        A longer horizon helps nothing where the model gives fewer frames than were asked for.
        """
        parts = {"env": self.env, "wire": self.wire, "policy": self.policy}
        parts["loop"] = max(0.0, duration - sum(parts.values()))
        total = sum(parts.values())
        if total <= 0 or self.env_wait + self.policy_wait <= 0:
            nothing = "Nothing was stepped, so nothing bound this run."
            return Bottleneck(nothing, dict.fromkeys(parts, 0.0))
        shares = {name: seconds / total for name, seconds in parts.items()}
        first, *rest = sorted(shares, key=lambda name: -shares[name])
        others = ", ".join(f"{_NAMES[name]} {shares[name]:.0%}" for name in rest)
        advice = "hooks and transforms would be the first place to look"
        if first in _ADVICE:
            ways = _ADVICE[first] if longer_horizon_helps else _ADVICE[first][-1:]
            advice = f"{' or '.join(ways)} would help"
        sentence = (
            f"{_NAMES[first].capitalize()} bound this run with {shares[first]:.0%} of its time "
            f"({others}); {advice}."
        )
        return Bottleneck(sentence, shares)


def work_ns_of(answer: Any) -> int | None:
    """What the endpoint of a ``JoinResponse`` spent on its user's code, queueing included.

    Reading and writing messages count as the wire's cost, on whichever machine they happen. None if
    it does not say.
    """
    if answer.endpoint_total_ns or answer.HasField("endpoint_total_ns"):
        return int(answer.endpoint_total_ns - answer.decode_ns - answer.encode_ns)
    return answer.user_ns if answer.HasField("user_ns") else None


def work_of(waited: float, answers: Sequence[Any], local_ns: int = 0) -> float:
    """Return the seconds, of those ``waited`` for some calls, in which somebody was at work.

    ``answers`` are the remote ones, and ``local_ns`` the nanoseconds of the calls into this process
    among them.
    """
    most_ns, is_known = local_ns, local_ns > 0
    for answer in answers:
        work_ns = work_ns_of(answer)
        if work_ns is not None:
            is_known = True
            # Endpoints work side by side, so the slowest is what was waited for.
            most_ns = max(most_ns, work_ns)
    # Where nobody says what part of it was the wire, all of it counts.
    return min(waited, most_ns / 1e9) if is_known else waited
