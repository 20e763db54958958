"""The rules that an env endpoint keeps, each a function that asks it for what the rule promises."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym._proto.spaces.v1 import value_pb2
from rlmesh_gym.codec import decode_meta_map, decode_png
from rlmesh_gym.codec.lane_infos import column_of
from rlmesh_gym.errors import CodecError, ProtocolError, SessionRefusedError
from rlmesh_gym.lanes import mint_episode_id
from rlmesh_gym.rpc import EnvSession
from rlmesh_gym.testing.rules import BrokenRuleError, EnvProbe, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlmesh_gym._proto.env.v1 import interaction_pb2
    from rlmesh_gym.rpc import TLSLike

__all__ = ["ENV_RULES", "check_env_endpoint"]

MAX_STEPS = 1000
"""Steps to wait for the end of an episode; the rules about ends are left out beyond."""


def check_contract(probe: EnvProbe) -> None:
    """The handshake tells lanes, spaces, autoreset mode."""
    rule = "contract"
    require(probe.num_envs >= 1, rule, f"num_envs is {probe.num_envs}")
    for name in ("subset_step", "rlmesh_gym.partial_reset"):
        value = probe.session.capabilities.get(name, "true")
        require(value == "true", rule, f"capability {name} is {value!r}, not 'true'")


def check_reset(probe: EnvProbe) -> None:
    """A reset answers with one observation per lane."""
    _rows(probe, probe.reset(), probe.num_envs, "reset")


def check_step(probe: EnvProbe) -> None:
    """A step answers with one observation, reward and pair of flags per lane, and no lane list."""
    rule = "step"
    probe.reset()
    step = probe.step()
    _rows(probe, step, probe.num_envs, rule)
    _widths(step, probe.num_envs, rule)
    require(not step.env_indices, rule, f"a whole step names lanes {list(step.env_indices)}")


def check_infos(probe: EnvProbe) -> None:
    """Lanes give a list of dicts beside a mask, one lane its bare dict, vectors masks per key."""
    rule = "infos"
    for message in (probe.reset(), probe.step()):
        infos = decode_meta_map(message.infos, typed=probe.session.has_arrays)
        if probe.num_envs > 1 and probe.session.has_lane_operations:
            for key in ("final_info", "_final_info"):
                is_column = column_of(infos.get(key), probe.num_envs) is not None
                require(is_column, rule, f"{key} has no list of {probe.num_envs} lanes")
        elif probe.num_envs > 1:
            for key in infos:
                is_mask = key.startswith("_") and key[1:] in infos
                known = is_mask or f"_{key}" in infos or key.startswith("rlmesh.")
                require(known, rule, f"the key {key!r} has no mask")


def check_bad_actions(probe: EnvProbe) -> None:
    """An action of another form is refused before the env sees it; the session goes on."""
    rule = "bad actions"
    probe.reset()
    session, rows = probe.session, probe.num_envs
    good = list(probe.sample(rows).leaves)
    wrong = [[*good, b""]]
    if good:
        wrong += [[], [*good[:-1], good[-1] + b"\0"]]
    for leaves in wrong:
        bad = value_pb2.SpaceValue(leaves=leaves)
        probe.refuses(partial(session.step, bad), rule, "INVALID_ACTION")
    probe.step()


def check_lanes(probe: EnvProbe) -> None:
    """Lanes are answered in the order asked; wrong ones are refused. Vectors say UNSUPPORTED."""
    rule = "lanes"
    session, last = probe.session, probe.num_envs - 1
    probe.reset()
    if not session.has_lane_operations:
        probe.refuses(lambda: session.step(probe.sample(1), env_indices=[0]), rule, "UNSUPPORTED")
        probe.step()
        return
    lanes = [last, 0] if last else [0]
    step = probe.wait(session.step(probe.sample(len(lanes)), env_indices=lanes))
    _rows(probe, step, len(lanes), rule)
    _widths(step, len(lanes), rule)
    require(list(step.env_indices) == lanes, rule, f"asked {lanes}, got {list(step.env_indices)}")
    for wrong in ([0, 0], [probe.num_envs]):
        action = probe.sample(len(wrong))
        call = partial(session.step, action, env_indices=wrong)
        probe.refuses(call, rule, "INVALID_ACTION")


def check_partial_reset(probe: EnvProbe) -> None:
    """A reset of some lanes answers with their rows only; wrong lanes or counts are refused."""
    rule = "partial reset"
    session, last = probe.session, probe.num_envs - 1
    probe.reset()
    if not session.has_partial_reset:
        probe.refuses(lambda: session.reset(env_indices=[0]), rule, "UNSUPPORTED")
        return
    lanes = [last, 0] if last else [0]
    ids = [mint_episode_id() for _ in lanes]
    seeds = [lane + 7 for lane in lanes]
    answer = session.reset(env_indices=lanes, seeds=seeds, episode_ids=ids)
    _rows(probe, probe.wait(answer), len(lanes), rule)
    too_many = [*seeds, 1]
    for call in (
        lambda: session.reset(env_indices=[0, 0]),
        lambda: session.reset(env_indices=[probe.num_envs]),
        lambda: session.reset(env_indices=lanes, seeds=too_many),
        lambda: session.reset(env_indices=lanes, episode_ids=[*ids, "x"]),
    ):
        probe.refuses(call, rule, "INVALID_ACTION")
    probe.step()


def check_episodes(probe: EnvProbe) -> None:
    """The step that ends an episode reports it once: id, length, return, seed."""
    rule = "episodes"
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
            require(not records, rule, f"step {length} ends nothing but reports {len(records)}")
            continue
        reported = sorted(record.env_index for record in records)
        require(reported == ended, rule, f"lanes {ended} ended, {reported} were reported")
        for record in records:
            lane = record.env_index
            _equal(rule, "episode_id", record.episode_id, ids[lane])
            _equal(rule, "step_count", record.step_count, length)
            _equal(rule, "seed", record.seed, seeds[lane])
            _equal(rule, "terminated", record.terminated, bool(step.terminated_mask[lane]))
            _equal(rule, "truncated", record.truncated, bool(step.truncated_mask[lane]))
            close = np.isclose(record.cumulative_reward, returns[lane], equal_nan=True)
            require(close, rule, f"cumulative_reward is {record.cumulative_reward}")
            in_order = 0 < record.start_timestamp_ns <= record.end_timestamp_ns
            require(in_order, rule, "an episode ends before it begins")
        return


def check_next_step(probe: EnvProbe) -> None:
    """Under NEXT_STEP the step after an ending resets the lane: no reward, no flags."""
    rule = "next step"
    if probe.contract.autoreset_mode is not AutoresetMode.NEXT_STEP:
        return
    if (done := _first_end(probe)) is None:
        return
    ended = np.flatnonzero(probe.ended(done)).tolist()
    for lane in ended:
        probe.episode_ids[lane] = mint_episode_id()
    roll = probe.step()
    flags = probe.ended(roll)
    for lane in ended:
        require(roll.rewards[lane] == 0.0, rule, f"lane {lane} has reward {roll.rewards[lane]}")
        require(not flags[lane], rule, f"lane {lane} ended in the step that reset it")


def check_same_step(probe: EnvProbe) -> None:
    """Under SAME_STEP the step that ends an episode holds its last observation and info."""
    rule = "same step"
    if probe.contract.autoreset_mode is not AutoresetMode.SAME_STEP:
        return
    if (done := _first_end(probe)) is None:
        return
    ended = probe.ended(done).tolist()
    infos = decode_meta_map(done.infos, typed=probe.session.has_arrays)
    for key in ("final_obs", "final_info"):
        require(key in infos, rule, f"lanes ended, but the infos hold no {key}")
        mask = column_of(infos.get(f"_{key}"), len(ended))
        _equal(rule, f"_{key}", None if mask is None else list(mask), ended)


def check_render(probe: EnvProbe) -> None:
    """A frame is a PNG image, or absent; several lanes at once are UNSUPPORTED."""
    rule = "render"
    probe.reset()
    probe.refuses(lambda: probe.session.render([0, 0]), rule, "UNSUPPORTED")
    if probe.contract.render_mode is None:
        return  # What an env does then is its own affair.
    answer = probe.wait(probe.session.render([0]))
    if answer.HasField("frame"):
        require(answer.format == 1, rule, f"the frame's format is {answer.format}, not PNG")
        try:
            decode_png(answer.frame)
        except ProtocolError as error:
            raise BrokenRuleError(rule, f"the frame is no image: {error}") from error


ENV_RULES: tuple[Callable[[EnvProbe], None], ...] = (
    check_contract,
    check_reset,
    check_step,
    check_infos,
    check_bad_actions,
    check_lanes,
    check_partial_reset,
    check_episodes,
    check_next_step,
    check_same_step,
    check_render,
)
"""Every rule, in the order in which they are checked."""


def check_env_endpoint(
    address: str, *, token: str | None = None, tls: TLSLike = None, timeout: float = 60.0
) -> list[str]:
    """Check that the endpoint at ``address`` keeps to the protocol.

    It plays random actions for up to a few thousand steps, and leaves the environment somewhere in
    an episode. It needs a session of its own.

    Args:
        address: The endpoint.
        token: What it asks for, else ``RLMESH_GYM_TOKEN``.
        tls: How to connect; see :class:`~rlmesh_gym.rpc.TLSConfig`.
        timeout: Seconds to wait for each answer.

    Returns:
        The first line of every rule that was checked.

    Raises:
        BrokenRuleError: The endpoint breaks a rule; the error names it.
        RemoteError: It could not be reached or gave up.
    """
    with EnvSession.open(address, token=token, tls=tls) as session:
        probe = EnvProbe(session, timeout)
        for rule in ENV_RULES:
            rule(probe)
        _check_second_session(address, token, tls, timeout)
    # The slot is free once the session has ended.
    with EnvSession.open(address, token=token, tls=tls) as session:
        check_reset(EnvProbe(session, timeout))
    return [(rule.__doc__ or rule.__name__).splitlines()[0] for rule in ENV_RULES]


def _check_second_session(address: str, token: str | None, tls: TLSLike, timeout: float) -> None:
    """A second session is refused, or has an environment of its own."""
    with EnvSession.open(address, token=token, tls=tls) as session:
        try:
            check_reset(EnvProbe(session, timeout))
        except SessionRefusedError:
            return


def _first_end(probe: EnvProbe) -> interaction_pb2.StepResponse | None:
    """Reset and step until an episode ends; None if that takes too long."""
    probe.reset()
    steps = (probe.step() for _ in range(MAX_STEPS))
    return next((step for step in steps if probe.ended(step).any()), None)


def _rows(
    probe: EnvProbe,
    message: interaction_pb2.ResetResponse | interaction_pb2.StepResponse,
    rows: int,
    rule: str,
) -> None:
    try:
        leaves = probe.observations.decode(message.observation, rows)
    except CodecError as error:
        raise BrokenRuleError(rule, f"the observation does not fit its space: {error}") from error
    found = probe.observations.out_of_domain(leaves)
    require(not found, rule, f"the observation leaves its domain: {found[:1]}")


def _widths(step: interaction_pb2.StepResponse, rows: int, rule: str) -> None:
    for name in ("rewards", "terminated_mask", "truncated_mask"):
        width = len(getattr(step, name))
        require(width == rows, rule, f"expected {rows} {name}, got {width}")
    wrong = set(step.terminated_mask + step.truncated_mask) - {0, 1}
    require(not wrong, rule, f"the masks hold bytes {sorted(wrong)}")


def _equal(rule: str, name: str, got: Any, expected: Any) -> None:
    require(got == expected, rule, f"{name} is {got!r}, expected {expected!r}")
