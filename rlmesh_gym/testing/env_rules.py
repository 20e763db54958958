"""The rules that an env endpoint keeps, each a function that asks it for what the rule promises."""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.codec import decode_meta_map, decode_png
from rlmesh_gym.codec.lane_infos import column_of
from rlmesh_gym.errors import ProtocolError, SessionRefusedError
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.rpc import EnvSession
from rlmesh_gym.testing.env_probe import MAX_STEPS, NO_END, EnvProbe
from rlmesh_gym.testing.rules import BrokenRuleError, first_lines, rules_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlmesh_gym.rpc import TLSLike
    from rlmesh_gym.testing.rules import Rule, RuleResult


_REPEATED_STEPS = 8


def check_contract(probe: EnvProbe) -> None:
    """The handshake tells lanes, spaces, autoreset mode."""
    probe.require(probe.num_envs >= 1, f"num_envs is {probe.num_envs}")
    for name in ("subset_step", "rlmesh_gym.partial_reset"):
        value = probe.session.capabilities.get(name, "true")
        probe.require(value == "true", f"capability {name} is {value!r}, not 'true'")


def check_reset(probe: EnvProbe) -> None:
    """A reset answers with one observation per lane."""
    probe.check_rows(probe.reset(), probe.num_envs)


def check_step(probe: EnvProbe) -> None:
    """A step answers with one observation, reward and pair of flags per lane, and no lane list."""
    probe.reset()
    step = probe.step()
    probe.check_rows(step, probe.num_envs)
    probe.check_widths(step, probe.num_envs)
    probe.require(not step.env_indices, f"a whole step names lanes {list(step.env_indices)}")


def check_infos(probe: EnvProbe) -> None:
    """Lanes give a list of dicts beside a mask, one lane its bare dict, vectors masks per key."""
    for message in (probe.reset(), probe.step()):
        infos = decode_meta_map(message.infos, typed=probe.session.has_arrays)
        if probe.num_envs > 1 and probe.session.has_lane_operations:
            for key in ("final_info", "_final_info"):
                is_column = column_of(infos.get(key), probe.num_envs) is not None
                probe.require(is_column, f"{key} has no list of {probe.num_envs} lanes")
        elif probe.num_envs > 1:
            for key in infos:
                is_mask = key.startswith("_") and key[1:] in infos
                known = is_mask or f"_{key}" in infos or key.startswith("rlmesh.")
                probe.require(known, f"the key {key!r} has no mask")


def check_seeds(probe: EnvProbe) -> None:
    """The same seeds and actions give the same observations, rewards and ends."""
    seeds = [11 + lane for lane in range(probe.num_envs)]
    actions = [probe.sample(probe.num_envs) for _ in range(_REPEATED_STEPS)]
    if probe.play(seeds, actions) != probe.play(seeds, actions):
        raise probe.lacking("the same seeds give something else the second time")


def check_bad_actions(probe: EnvProbe) -> None:
    """An action of another form is refused before the env sees it; the session goes on."""
    probe.reset()
    session, rows = probe.session, probe.num_envs
    good = list(probe.sample(rows).leaves)
    wrong = [[*good, b""]]
    if good:
        wrong += [[], [*good[:-1], good[-1] + b"\0"]]
    for leaves in wrong:
        bad = value_pb2.SpaceValue(leaves=leaves)
        probe.refuses(partial(session.step, bad), "INVALID_ACTION")
    probe.step()


def check_lanes(probe: EnvProbe) -> None:
    """Lanes are answered in the order asked; wrong ones are refused. Vectors say UNSUPPORTED."""
    session, last = probe.session, probe.num_envs - 1
    probe.reset()
    if not session.has_lane_operations:
        probe.refuses(lambda: session.step(probe.sample(1), env_indices=[0]), "UNSUPPORTED")
        probe.step()
        raise probe.lacking("its lanes cannot be stepped one by one (subset_step)")
    lanes = [last, 0] if last else [0]
    step = probe.wait(session.step(probe.sample(len(lanes)), env_indices=lanes))
    probe.check_rows(step, len(lanes))
    probe.check_widths(step, len(lanes))
    probe.require(list(step.env_indices) == lanes, f"asked {lanes}, got {list(step.env_indices)}")
    for wrong in ([0, 0], [probe.num_envs]):
        action = probe.sample(len(wrong))
        call = partial(session.step, action, env_indices=wrong)
        probe.refuses(call, "INVALID_ACTION")


def check_partial_reset(probe: EnvProbe) -> None:
    """A reset of some lanes answers with their rows only; wrong lanes or counts are refused."""
    session, last = probe.session, probe.num_envs - 1
    probe.reset()
    if not session.has_partial_reset:
        probe.refuses(lambda: session.reset(env_indices=[0]), "UNSUPPORTED")
        raise probe.lacking("its lanes cannot be reset one by one (rlmesh_gym.partial_reset)")
    lanes = [last, 0] if last else [0]
    ids = [mint_episode_id() for _ in lanes]
    seeds = [lane + 7 for lane in lanes]
    answer = session.reset(env_indices=lanes, seeds=seeds, episode_ids=ids)
    probe.check_rows(probe.wait(answer), len(lanes))
    too_many = [*seeds, 1]
    for call in (
        lambda: session.reset(env_indices=[0, 0]),
        lambda: session.reset(env_indices=[probe.num_envs]),
        lambda: session.reset(env_indices=lanes, seeds=too_many),
        lambda: session.reset(env_indices=lanes, episode_ids=[*ids, "x"]),
    ):
        probe.refuses(call, "INVALID_ACTION")
    probe.step()


def check_episodes(probe: EnvProbe) -> None:
    """The step that ends an episode reports it once: id, length, return, seed."""
    seeds = [3 + lane for lane in range(probe.num_envs)]
    probe.reset(seeds)
    ids = list(probe.episode_ids)
    returns = np.zeros(probe.num_envs)
    for length in range(1, MAX_STEPS + 1):
        step = probe.step()
        returns += list(step.rewards)
        # The first step also reports what the reset before interrupted, under its own id.
        records = [r for r in step.completed_episodes if length > 1 or r.episode_id in ids]
        ended = np.flatnonzero(probe.ended(step)).tolist()
        if not ended:
            probe.require(not records, f"step {length} ends nothing but reports {len(records)}")
            continue
        reported = sorted(record.env_index for record in records)
        probe.require(reported == ended, f"lanes {ended} ended, {reported} were reported")
        for record in records:
            lane = record.env_index
            probe.require_equal("episode_id", record.episode_id, ids[lane])
            probe.require_equal("step_count", record.step_count, length)
            probe.require_equal("seed", record.seed, seeds[lane])
            probe.require_equal("terminated", record.terminated, bool(step.terminated_mask[lane]))
            probe.require_equal("truncated", record.truncated, bool(step.truncated_mask[lane]))
            close = np.isclose(record.cumulative_reward, returns[lane], equal_nan=True)
            probe.require(close, f"cumulative_reward is {record.cumulative_reward}")
            in_order = 0 < record.start_timestamp_ns <= record.end_timestamp_ns
            probe.require(in_order, "an episode ends before it begins")
        return
    raise probe.skipped(NO_END)


def check_next_step(probe: EnvProbe) -> None:
    """Under NEXT_STEP the step after an ending resets the lane: no reward, no flags."""
    probe.expect_mode(AutoresetMode.NEXT_STEP)
    done = probe.first_end()
    ended = np.flatnonzero(probe.ended(done)).tolist()
    for lane in ended:
        probe.episode_ids[lane] = mint_episode_id()
    roll = probe.step()
    flags = probe.ended(roll)
    for lane in ended:
        probe.require(roll.rewards[lane] == 0.0, f"lane {lane} has reward {roll.rewards[lane]}")
        probe.require(not flags[lane], f"lane {lane} ended in the step that reset it")


def check_same_step(probe: EnvProbe) -> None:
    """Under SAME_STEP the step that ends an episode holds its last observation and info."""
    probe.expect_mode(AutoresetMode.SAME_STEP)
    done = probe.first_end()
    ended = probe.ended(done).tolist()
    infos = decode_meta_map(done.infos, typed=probe.session.has_arrays)
    for key in ("final_obs", "final_info"):
        probe.require(key in infos, f"lanes ended, but the infos hold no {key}")
        mask = column_of(infos.get(f"_{key}"), len(ended))
        probe.require_equal(f"_{key}", None if mask is None else list(mask), ended)


def check_render(probe: EnvProbe) -> None:
    """A frame is a PNG image, or absent; several lanes at once are UNSUPPORTED."""
    probe.reset()
    probe.refuses(lambda: probe.session.render([0, 0]), "UNSUPPORTED")
    if probe.contract.render_mode is None:
        raise probe.lacking("it was made without a render_mode")
    answer = probe.wait(probe.session.render([0]))
    if answer.HasField("frame"):
        probe.require(answer.format == 1, f"the frame's format is {answer.format}, not PNG")
        try:
            decode_png(answer.frame)
        except ProtocolError as error:
            raise BrokenRuleError(probe.rule, f"the frame is no image: {error}") from error


def check_sessions(probe: EnvProbe) -> None:
    """A second session is refused or has an env of its own; the slot of one that ends is free."""
    probe.reset()
    with suppress(SessionRefusedError), closing(EnvProbe(probe.connect, probe.timeout)) as second:
        second.rule = probe.rule
        check_reset(second)
    probe.step()
    probe.session.close()
    with closing(EnvProbe(probe.connect, probe.timeout)) as after:
        after.rule = probe.rule
        check_reset(after)


ENV_RULES: tuple[Rule[EnvProbe], ...] = rules_of(
    [
        check_contract,
        check_reset,
        check_step,
        check_infos,
        check_seeds,
        check_bad_actions,
        check_lanes,
        check_partial_reset,
        check_episodes,
        check_next_step,
        check_same_step,
        check_render,
        check_sessions,
    ]
)
"""Every rule, in the order in which they are checked, each in a session of its own."""


def env_rule_results(
    address: str, *, token: str | None = None, tls: TLSLike = None, timeout: float = 60.0
) -> Iterator[RuleResult]:
    """Check rule after rule on the env endpoint at ``address``, and give the result of each.

    It plays random actions for up to a few thousand steps, and leaves the environment somewhere in
    an episode. It needs a session of its own.

    Args:
        address: The endpoint.
        token: What it asks for, else ``RLMESH_GYM_TOKEN``.
        tls: How to connect; see :class:`~rlmesh_gym.rpc.TLSConfig`.
        timeout: Seconds to wait for each answer.

    Raises:
        RemoteError: It cannot be reached.
    """
    connect = partial(EnvSession.open, address, token=token, tls=tls)
    for rule in ENV_RULES:
        with closing(EnvProbe(connect, timeout)) as probe:
            result = rule.result(probe)
        yield result


def check_env_endpoint(
    address: str, *, token: str | None = None, tls: TLSLike = None, timeout: float = 60.0
) -> list[str]:
    """Check that the endpoint at ``address`` keeps to the protocol.

    Arguments are those of :func:`env_rule_results`. What the endpoint lacks is no failure.

    Returns:
        The first line of every rule that was checked.

    Raises:
        BrokenRuleError: The endpoint breaks a rule; the error names it.
        RemoteError: It could not be reached or gave up.
    """
    return first_lines(env_rule_results(address, token=token, tls=tls, timeout=timeout))
