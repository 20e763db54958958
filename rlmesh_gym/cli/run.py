"""``rlmesh-gym run``: evaluate a served policy on served environments, and report."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rlmesh_gym.cli.exit_codes import Exit, explain, tell
from rlmesh_gym.cli.options import add_connection_options, connection_arguments, count_option
from rlmesh_gym.cli.output import show
from rlmesh_gym.cli.run_plan import RunPlan
from rlmesh_gym.cli.signals import interrupt_cancels
from rlmesh_gym.errors import ConfigurationError, Error, RemoteError
from rlmesh_gym.restarts import RESTART_PATIENCE, OnFailure
from rlmesh_gym.rpc import ModelSession
from rlmesh_gym.runtime.cancellation import Cancellation
from rlmesh_gym.runtime.driver import RuntimeDriver
from rlmesh_gym.runtime.ends.finding import find_envs
from rlmesh_gym.runtime.hooks.jsonl import EpisodeRecorder
from rlmesh_gym.runtime.hooks.progress import ProgressBar
from rlmesh_gym.runtime.hooks.video import VideoRecorder
from rlmesh_gym.runtime.report.records import EPISODES_JSONL, EpisodeJournal, read_episodes
from rlmesh_gym.runtime.report.report_files import joined_sessions, read_report, write_report
from rlmesh_gym.runtime.spec import DEFAULT_SESSION_ID, RuntimeLimits, RuntimeSessionSpec

if TYPE_CHECKING:
    from rlmesh_gym.cli.run_plan import Remaining
    from rlmesh_gym.env.drive.group import EndpointGroup
    from rlmesh_gym.runtime.ends.finding import RunEnv
    from rlmesh_gym.runtime.hooks.table import RuntimeHooks
    from rlmesh_gym.runtime.report.runtime_report import RuntimeReport


EPILOG = """\
The report directory gets report.html (one page that needs nothing else), report.json, episodes.csv,
and episodes.jsonl, into which episodes go as they finish. A run that stopped, for whatever reason,
goes on with --resume. With --seed, every episode has its own seed, the same for any number of lanes
and endpoints; --shard plays a part of them, and 'rlmesh-gym merge' joins the parts.

  rlmesh-gym run --env 127.0.0.1:5555 --model 127.0.0.1:6000 --episodes 100 --seed 7 --report out/
  rlmesh-gym run --resume out/
  rlmesh-gym run --env a:5555 --env b:5555 --model m:6000 --seed 7 --shard 1/2 --report part-1/

Exit codes: 0 all episodes played, 1 failed, 2 wrong usage, 3 no env endpoint, 4 no model endpoint,
5 environment and model do not fit, 130 interrupted. Once the run has begun, the report of what was
done is written whatever the exit code.
"""


def _shard(text: str) -> tuple[int, int]:
    first, separator, second = text.partition("/")
    if separator and first.isdecimal() and second.isdecimal():
        shard = int(first), int(second)
        if 1 <= shard[0] <= shard[1]:
            return shard
    raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, got {text!r}")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; those of the plan default to None, so that a resumed one shows."""
    parser.add_argument(
        "--env",
        action="append",
        metavar="ADDRESS",
        help="env endpoint; may be repeated, all their lanes are played at once",
    )
    parser.add_argument("--model", metavar="ADDRESS", help="model endpoint")
    count_option(parser, "--episodes", "to complete in all (default: 100)")
    parser.add_argument("--seed", type=int, metavar="N", help="default: unseeded")
    count_option(parser, "--horizon", "actions of each predicted chunk to execute (default: 1)")
    count_option(parser, "--max-episode-steps", "truncate episodes there")
    parser.add_argument(
        "--shard", type=_shard, metavar="I/N", help="play the I-th of N parts of the episodes"
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--report", metavar="DIRECTORY", help="where to write the report")
    place.add_argument("--resume", metavar="DIRECTORY", help="go on with the run in there")
    text = "record the first N episodes of this session; the env must render rgb_array"
    count_option(parser, "--video", text, default=0)
    parser.add_argument(
        "--on-failure",
        choices=get_args(OnFailure),
        default="raise",
        help="what to do when an endpoint is lost: end the run, or wait for it and play what it "
        "cut off again (default: raise)",
    )
    parser.add_argument(
        "--restart-patience",
        type=float,
        default=RESTART_PATIENCE,
        metavar="SECONDS",
        help=f"how long to wait for a lost endpoint (default: {RESTART_PATIENCE:g})",
    )
    add_connection_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Connect, play what is left, report."""
    directory = Path(options.report or options.resume)
    plan = _plan(options, directory)
    how = connection_arguments(options)
    with ExitStack() as stack:
        envs: list[tuple[RunEnv, EndpointGroup]] = []
        try:
            for env in find_envs(plan.env, **how):
                group = env.open(_limits(options), options.on_failure)
                stack.callback(group.close)
                envs.append((env.opened(group), group))
        except RemoteError as error:
            return tell(f"environment: {error}", Exit.ENV_UNREACHABLE)
        try:
            model = stack.enter_context(ModelSession.open(plan.model, **how))
        except RemoteError as error:
            return tell(f"model: {error}", Exit.MODEL_UNREACHABLE)
        return _play(plan, directory, options, envs, model)


def _plan(options: argparse.Namespace, directory: Path) -> RunPlan:
    if options.report is not None:
        _check_unused(directory)
    earlier = RunPlan.load(directory) if options.resume is not None else None
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(RunPlan)}
    return RunPlan.from_options(given, earlier)


def _check_unused(directory: Path) -> None:
    journal = directory / EPISODES_JSONL
    # A run that failed before its first episode leaves nothing to keep.
    if journal.is_file() and read_episodes(journal).rows:
        raise ConfigurationError(
            f"{directory} holds the episodes of an earlier run; go on with it by "
            f"--resume {directory}, or name a new directory"
        )


def _play(
    plan: RunPlan,
    directory: Path,
    options: argparse.Namespace,
    envs: list[tuple[RunEnv, EndpointGroup]],
    model: ModelSession,
) -> int:
    served = [endpoint for _, group in envs for endpoint in group.endpoints]
    # Whether every lane can begin its next episode by itself, and so with a seed.
    per_episode = all(endpoint.can_reset_lanes for endpoint in served)
    if plan.seed is not None and not per_episode:
        print(
            "note: an endpoint cannot reset single lanes, so only each lane's first episode is "
            "seeded",
            file=sys.stderr,
        )
    with EpisodeJournal(directory) as journal:
        if options.report is not None:
            _check_unused(directory)
        earlier = journal.rows
        serves = served[0].session.contract.env_id
        if played := {str(row.get("env_id")) for row in earlier} - {serves}:
            raise ConfigurationError(
                f"{directory} holds episodes of {', '.join(sorted(played))} and the endpoint "
                f"serves {serves}; name a new directory with --report"
            )
        before = read_report(directory)
        remaining = plan.remaining(earlier, per_episode=per_episode)
        if earlier:
            show(f"{len(earlier):,} episodes are done, {len(remaining.indices):,} are left")
        is_reported = before is not None and len(before.completed_episodes) >= len(earlier)
        # A run may have been killed after its last episode and before its report.
        if not remaining.indices and is_reported:
            return Exit.DONE
        plan.save(directory)
        recorder = EpisodeRecorder(journal, remaining.indices)
        hooks: list[RuntimeHooks] = [recorder, ProgressBar()]
        if options.video:
            hooks.append(VideoRecorder(directory / "videos", options.video))
        spec = _spec(plan, options, remaining, done=len(earlier))
        session, error = _drive(RuntimeDriver(spec, [env for env, _ in envs], model, hooks))
        rows = (*journal.rows, *recorder.unwritten)
        report = joined_sessions(session, before, earlier, rows)
        report = dataclasses.replace(report, base_seed=plan.seed)
        try:  # Before anything is shown, which may fail too.
            written = write_report(report, directory, journal=journal)
        except ConfigurationError as unwritten:
            show(f"\n{report}\n\n{report.telemetry}\n")
            return tell(str(unwritten), Exit.FAILED)
    show(f"\n{report}\n\n{report.telemetry}\n\nreport: {written}")
    if error is not None:
        endpoints = [endpoint.address for endpoint in served]
        code, text = explain(error, plan.env, endpoints, model.endpoint)
        if code in {Exit.ENV_UNREACHABLE, Exit.MODEL_UNREACHABLE}:
            text = f"{text}; when it is back, go on with --resume {directory}"
        return tell(text, code)
    if report.stop_reason.startswith("cancelled"):
        return tell(f"interrupted; go on with --resume {directory}", Exit.INTERRUPTED)
    return Exit.DONE


def _drive(driver: RuntimeDriver) -> tuple[RuntimeReport, Error | None]:
    """Play; return the report of this session, and the error that ended it."""
    cancellation = Cancellation()
    try:
        with interrupt_cancels(cancellation.cancel):
            return driver.run(cancellation), None
    except Error as error:
        report: RuntimeReport | None = getattr(error, "report", None)
        if report is None:
            raise
        return report, error


def _limits(options: argparse.Namespace) -> RuntimeLimits:
    limits = RuntimeLimits(restart_patience=options.restart_patience)
    if options.timeout is None:
        return limits
    return dataclasses.replace(
        limits,
        env_reset_timeout=options.timeout,
        env_step_timeout=options.timeout,
        model_resolve_timeout=options.timeout,
        model_predict_timeout=options.timeout,
    )


def _spec(
    plan: RunPlan, options: argparse.Namespace, remaining: Remaining, *, done: int
) -> RuntimeSessionSpec:
    is_first = remaining.seeds is not None or not done
    return RuntimeSessionSpec(
        max_episodes=len(remaining.indices),
        max_episode_steps=plan.max_episode_steps,
        base_seed=plan.seed if remaining.seeds is None else None,
        episode_seeds=remaining.seeds,
        execution_horizon=plan.horizon,
        limits=_limits(options),
        on_failure=options.on_failure,
        # Without seeds for each episode, a resumed run must not begin like the first one.
        session_id=DEFAULT_SESSION_ID if is_first else f"resumed-{done}",
    )
