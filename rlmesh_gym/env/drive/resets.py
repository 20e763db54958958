"""Resets of one endpoint: of all its lanes, or of some of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rlmesh_gym.codec.reset_arguments import are_consecutive
from rlmesh_gym.env.reading.infos import all_rows
from rlmesh_gym.errors import AutoresetError, ConfigurationError, ResetNeededError
from rlmesh_gym.rpc import AnyPending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint
    from rlmesh_gym.env.reading.infos import BatchedInfos, LaneInfos


Resetting = Generator[AnyPending, Any, "dict[int, dict[str, Any]]"]
"""A reset under way; returns the infos of the lanes that it reset, by env_index."""


def reset_lanes(
    endpoint: Endpoint,
    indices: Sequence[int],
    batch: Batch,
    seeds: Sequence[int | None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Resetting:
    """Reset some lanes, or all, once ``check_resettable`` has passed.

    ``indices`` are env_indices, ascending, with a seed or None for each. Only their rows of the
    batch are written, with the first observations.
    """
    seeds = [None] * len(indices) if seeds is None else seeds
    seeded = [position for position, seed in enumerate(seeds) if seed is not None]
    if is_whole(endpoint, indices, seeds):
        given = [seed for seed in seeds if seed is not None]
        read = yield from reset_whole(endpoint, batch, given, options)
        return dict(all_rows(read, endpoint.num_envs))
    unseeded = [position for position, seed in enumerate(seeds) if seed is None]
    parts = []
    for positions in (seeded, unseeded):
        if not positions:
            continue
        part = [indices[position] for position in positions]
        part_seeds = [seeds[position] for position in positions]
        ids = endpoint.new_ids(len(part))
        try:
            pending = endpoint.session.reset(
                seeds=[seed for seed in part_seeds if seed is not None],
                options=options,
                env_indices=part,
                episode_ids=ids,
            )
        except ResetNeededError as error:
            raise endpoint.gone("reset", error) from error
        parts.append((part, part_seeds, ids, pending))
    infos: dict[int, dict[str, Any]] = {}
    failure: Exception | None = None
    for part, part_seeds, ids, pending in parts:
        try:
            response = yield pending
        except Exception as error:  # Raised below, after the other part.
            failure = failure or error
            continue
        rows = endpoint.codec.decode(response.observation, len(part))
        batch.put_rows([endpoint.start + index for index in part], rows)
        endpoint.begin(part, part_seeds, ids)
        endpoint.last.keep_rows(part, rows)
        read = endpoint.read_infos(response.infos, len(part))
        infos.update((part[row], info) for row, info in all_rows(read, len(part)))
    if failure is not None:
        raise failure
    return infos


def reset_whole(
    endpoint: Endpoint, batch: Batch, seeds: Sequence[int], options: Mapping[str, Any] | None
) -> Generator[AnyPending, Any, LaneInfos | BatchedInfos | None]:
    """Reset all lanes with one request; see ``reset_lanes``. Also heals a lost endpoint."""
    ids = endpoint.new_ids(endpoint.num_envs)
    sent = seeds
    if not endpoint.session.has_lane_operations and are_consecutive(seeds):
        # A vector env promises to take one int and spreads it; not all take a list. Lanes do not.
        sent = seeds[:1]
    response = yield endpoint.session.reset(seeds=sent, options=options, episode_ids=ids)
    batch.put(response.observation, endpoint.start, endpoint.num_envs)
    endpoint.begin(range(endpoint.num_envs), list(seeds) or None, ids)
    endpoint.last.keep(response.observation)
    endpoint.is_lost = False
    endpoint.is_loss_told = True
    return endpoint.read_infos(response.infos, endpoint.num_envs)


def is_whole(endpoint: Endpoint, indices: Sequence[int], seeds: Sequence[int | None]) -> bool:
    """Whether one request does it: for all lanes, with seeds for all of them or for none."""
    given = sum(seed is not None for seed in seeds)
    return len(indices) == endpoint.num_envs and given in (0, len(seeds))


def check_resettable(
    endpoint: Endpoint, indices: Sequence[int], seeds: Sequence[int | None]
) -> None:
    """Check that ``reset_lanes`` can do it."""
    if is_whole(endpoint, indices, seeds):
        return
    lanes = [endpoint.start + index for index in indices]
    whole = len(indices) == endpoint.num_envs
    if endpoint.is_lost and not whole:
        raise ResetNeededError(
            f"reset: {endpoint.address} was lost, so its lanes {list(endpoint.lanes)} must be "
            f"reset together; got {lanes}"
        )
    if endpoint.can_reset_lanes:
        return
    if whole:
        raise ConfigurationError(
            f"reset: {endpoint.address} cannot reset its lanes one by one (it lacks the "
            "capabilities 'subset_step' and 'rlmesh_gym.partial_reset'), so they need seeds "
            f"either all or none; got {list(seeds)} for the lanes {lanes}"
        )
    raise AutoresetError(
        f"reset: {endpoint.address} cannot reset some of its lanes alone (it lacks the "
        "capabilities 'subset_step' and 'rlmesh_gym.partial_reset'); reset_mask must name all "
        f"of its lanes {list(endpoint.lanes)} or none, got {lanes}"
    )
