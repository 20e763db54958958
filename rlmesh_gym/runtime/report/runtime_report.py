"""What a run leaves behind: totals, one record per episode, telemetry, and what bound it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlmesh_gym.episodes import EpisodeRecord, EpisodeStatistics
from rlmesh_gym.plain_data import PlainData
from rlmesh_gym.runtime.report.bottleneck import Bottleneck
from rlmesh_gym.runtime.report.episode_table import episodes_html
from rlmesh_gym.runtime.report.formatting import (
    count_of,
    escape,
    fact_lines,
    format_duration,
    format_number,
)
from rlmesh_gym.runtime.report.metrics import TelemetrySnapshot


@dataclass(frozen=True)
class RuntimeReport(PlainData):
    """What :meth:`RuntimeDriver.run` returns, and what a failed run's error carries as ``report``.

    Attributes:
        session_id: Id of the run; part of the seed derivation.
        env_id: Id of the environment.
        num_envs: Lanes over all endpoints.
        autoreset_mode: Name of the mode, such as ``"NEXT_STEP"``.
        env_endpoints: Addresses of the env endpoints, ``("local",)`` for an env in this process.
        model_endpoint: Address of the model, ``"local"`` for one in this process.
        base_seed: Seed that the per-lane seeds derive from, None when unseeded.
        execution_horizon: Frames of each prediction that were executed: what was asked for, or
            fewer where the model gives fewer.
        episodes: Completed episodes ordered by ``(index, lane)``, then the interrupted ones.
        total_steps: Lane steps of all these episodes; steps that a lane made while it waited for
            the others, or to roll over to its next episode, are not among them.
        total_reward: Sum of all rewards of ``total_steps``.
        started_at: Seconds since the Unix epoch.
        duration: Seconds.
        stop_reason: ``"max_episodes"``, ``"max_steps"``, ``"cancelled: …"`` or ``"failed"``.
        error: Type and message of the failure, None otherwise.
        telemetry: Snapshot of the session horizon.
        bottleneck: What bound the run.
        run_id: A UUIDv7, new in every run.
        requested_horizon: The ``execution_horizon`` that was asked for; None in reports of earlier
            versions.
        predict_calls: Requests that went to the model; likewise.
        predict_rows: Rows in them, one per lane and plan; likewise.
    """

    _READERS = {  # noqa: RUF012 - ClassVar in the base class
        "env_endpoints": tuple,
        "episodes": lambda episodes: tuple(map(EpisodeRecord.from_dict, episodes)),
        "telemetry": TelemetrySnapshot.from_dict,
        "bottleneck": Bottleneck.from_dict,
        **dict.fromkeys(("total_reward", "started_at", "duration"), float),
    }

    session_id: str
    env_id: str
    num_envs: int
    autoreset_mode: str
    env_endpoints: tuple[str, ...]
    model_endpoint: str
    base_seed: int | None
    execution_horizon: int
    episodes: tuple[EpisodeRecord, ...]
    total_steps: int
    total_reward: float
    started_at: float
    duration: float
    stop_reason: str
    error: str | None
    telemetry: TelemetrySnapshot
    bottleneck: Bottleneck
    run_id: str = ""
    requested_horizon: int | None = None
    predict_calls: int | None = None
    predict_rows: int | None = None

    @property
    def total_episodes(self) -> int:
        """Number of completed episodes, as ``completed_episodes`` lists them."""
        return len(self.completed_episodes)

    @property
    def completed_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes that ended by themselves or by an episode limit, none that the run cut off."""
        return tuple(episode for episode in self.episodes if not episode.interrupted)

    @property
    def statistics(self) -> EpisodeStatistics:
        """Returns, lengths and successes of the completed episodes."""
        return EpisodeStatistics.of(self.episodes)

    @property
    def mean_return(self) -> float:
        """Mean return of the completed episodes; NaN without any."""
        return self.statistics.returns.mean

    @property
    def success_rate(self) -> float | None:
        """Share of the completed episodes that succeeded; None if the env says of none."""
        return self.statistics.success_rate

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know beside the numbers, a sentence each."""
        notes = []
        asked, given = self.requested_horizon, self.execution_horizon
        if asked is not None and given < asked:
            notes.append(
                f"the model gave {count_of(given, 'frame')} per prediction, execution_horizon was "
                f"{asked}"
            )
        if self.telemetry.held is not None and self.telemetry.held.warning is not None:
            notes.append(self.telemetry.held.warning)
        return tuple(notes)

    @property
    def succeeded(self) -> bool:
        """Whether the run ended without an error and was not cancelled."""
        return self.error is None and not self.stop_reason.startswith("cancelled")

    def headline(self) -> list[tuple[str, str, str]]:
        """The run's main numbers for people: name, value, and what goes with it."""
        every = self.statistics
        returns = every.returns
        cut_off = f", {every.interrupted:,} cut off" if every.interrupted else ""
        numbers = [("episodes", f"{every.completed:,}", f"completed{cut_off}")]
        if every.completed:
            half = f"± {format_number(returns.ci95, 3)} (95% interval)"
            half = "" if math.isnan(returns.ci95) else half
            span = f"({format_number(returns.minimum)} to {format_number(returns.maximum)})"
            truncated = f"({every.completed - every.terminated:,} truncated)"
            numbers += [
                ("mean return", format_number(returns.mean), half),
                ("median return", format_number(returns.median), span),
                ("mean length", format_number(every.lengths.mean), truncated),
            ]
        if every.success_rate is not None:
            low, high = every.success_interval
            of = f"({every.successes:,} of {every.judged:,}, 95% interval {low:.0%} to {high:.0%})"
            numbers.append(("success rate", f"{every.success_rate:.1%}", of))
        speed = self.total_steps / self.duration if self.duration > 0 else 0.0
        took = f"in {format_duration(self.duration)} ({speed:,.0f}/s)"
        return [*numbers, ("steps", f"{self.total_steps:,}", took)]

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("environment", f"{self.env_id}, {count_of(self.num_envs, 'lane')}"),
            ("env endpoints", ", ".join(self.env_endpoints)),
            ("model", self.model_endpoint),
            *((name, f"{value} {more}".rstrip()) for name, value, more in self.headline()),
            ("ended", self.error or self.stop_reason),
            ("bound by", self.bottleneck.sentence),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        return fact_lines(self._facts())

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self._facts()
        )
        return (
            f"<table><tbody>{facts}</tbody></table>"
            f"{self.telemetry._repr_html_()}{episodes_html(self.episodes)}"
        )
