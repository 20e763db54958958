"""SAME_STEP over any endpoint, and the other modes over one that resets within the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rlmesh_gym.env.autoreset.conversion import Conversion
from rlmesh_gym.env.drive.resets import check_resettable, reset_lanes
from rlmesh_gym.errors import ProtocolError
from rlmesh_gym.lanes import any_true

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlmesh_gym.codec import Leaves
    from rlmesh_gym.env.autoreset.conversion import LaneSeeds, Options
    from rlmesh_gym.env.drive.batch import Batch
    from rlmesh_gym.env.drive.endpoint import Endpoint, StepReply
    from rlmesh_gym.env.drive.exchange import Exchange


class SameStep(Conversion):
    """Lanes that the endpoint does not reset within the step are reset right after it.

    Works over every mode: on a NEXT_STEP endpoint the reset cancels the pending one, on a SAME_STEP
    endpoint only lanes that the client truncates need it.
    """

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step all lanes, then reset the ended ones."""
        endpoint = self.endpoint
        reply = self.take((yield endpoint.send_step(actions)), batch)
        done = endpoint.advance(reply)
        if not done:
            return self.rows(reply.infos)
        remotely = endpoint.mode is AutoresetMode.SAME_STEP
        reset_already = [row for row in done if remotely and reply.ended_remotely(row)]
        to_reset = [row for row in done if row not in reset_already]
        final: dict[int, dict[str, Any]] = {}
        for row in to_reset:
            # Copies: the reset below overwrites the rows.
            observation = batch.sample(endpoint.start + row)
            final[row] = {"final_obs": observation, "final_info": reply.info(row)}
            endpoint.record(row, reply, row, reply.info(row))
        for row in reset_already:
            endpoint.record(row, reply, row, reply.final_info(row))
        endpoint.begin(reset_already)  # It learns the new ids with the next request.
        if not to_reset:
            return self.rows(reply.infos)
        infos = yield from reset_lanes(endpoint, to_reset, batch)
        rows: list[tuple[int, dict[str, Any]]] = []
        for index in range(endpoint.num_envs):
            own = [final[index], infos.get(index, {})] if index in final else [reply.info(index)]
            rows += [(index, info) for info in own]
        return rows


class HeldFirstObservation(Conversion):
    """The first observation of a new episode comes too early and is held back.

    The step that ends an episode returns the terminal observation out of ``final_obs``. Under
    NEXT_STEP the next step hands out what is held and steps the other lanes only; under DISABLED
    the user's reset hands it out.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._held: dict[int, tuple[Leaves, dict[str, Any]]] = {}

    def forget(self) -> None:
        """Drop the held observations; their episodes are gone."""
        self._held.clear()

    def step(self, actions: Leaves, batch: Batch) -> Exchange:
        """Step the running lanes; ended ones begin with what is held."""
        endpoint = self.endpoint
        if not any_true(endpoint.ended):
            reply = self.take((yield endpoint.send_step(actions)), batch)
            done = endpoint.advance(reply)
            if not done:
                return self.rows(reply.infos)
            indices = list(range(endpoint.num_envs))
            return sorted(self._hold(indices, done, reply, batch).items())
        beginning = np.flatnonzero(endpoint.ended).tolist()
        running = np.flatnonzero(~endpoint.ended).tolist()
        infos: dict[int, dict[str, Any]] = {}
        if running:
            response = yield endpoint.send_lane_step(running, actions)
            reply = self.take_some(response, running, batch)
            infos = self._hold(running, endpoint.advance(reply, running), reply, batch)
        infos.update(self._hand_out(beginning, batch))
        return sorted(infos.items())

    def reset(
        self, indices: Sequence[int], seeds: LaneSeeds, options: Options, batch: Batch
    ) -> Exchange:
        """Hand out held observations; lanes without one, with a seed or options are reset."""
        endpoint = self.endpoint
        by_index = dict(zip(indices, seeds, strict=True))
        ready, others = self._divide(by_index, options)
        if not ready and len(others) == endpoint.num_envs:
            infos = yield from super().reset(indices, seeds, options, batch)
            self._held.clear()
            return infos
        by_reset: dict[int, dict[str, Any]] = {}
        if others:
            other_seeds = [by_index[index] for index in others]
            by_reset = yield from reset_lanes(endpoint, others, batch, other_seeds, options)
            for index in others:
                self._held.pop(index, None)
        by_reset.update(self._hand_out(ready, batch))
        return sorted(by_reset.items())

    def check_reset(self, indices: Sequence[int], seeds: LaneSeeds, options: Options) -> None:
        """See the base class; lanes with a held observation need nothing of the endpoint."""
        by_index = dict(zip(indices, seeds, strict=True))
        _, others = self._divide(by_index, options)
        if others:
            check_resettable(self.endpoint, others, [by_index[index] for index in others])

    def _divide(
        self, seeds: Mapping[int, int | None], options: Options
    ) -> tuple[list[int], list[int]]:
        """Return the lanes whose held observation will do, and those to be reset."""
        ready = [i for i, seed in seeds.items() if i in self._held and seed is None and not options]
        others = [index for index in seeds if index not in ready]
        if ready and others and not self.endpoint.can_reset_lanes:
            # Only a whole reset is left, and that begins all lanes anew.
            return [], list(seeds)
        return ready, others

    def _hold(
        self, indices: Sequence[int], done: Sequence[int], reply: StepReply, batch: Batch
    ) -> dict[int, dict[str, Any]]:
        """Exchange first observations for terminal ones; return all infos by env_index."""
        endpoint = self.endpoint
        infos = {index: reply.info(row) for row, index in enumerate(indices)}
        for row in done:
            index = indices[row]
            lane = endpoint.start + index
            info = infos[index]
            if reply.ended_remotely(row):
                terminal = info.pop("final_obs", None)
                if terminal is None:
                    raise ProtocolError(
                        f"step: the episode of lane {lane} is over and the endpoint resets in the "
                        "same step, but its infos hold no final_obs",
                        endpoint=endpoint.address,
                        operation="step",
                    )
                info.pop("final_info", None)
                self._held[index] = (batch.take_rows([lane]), info)
                rows = endpoint.codec.flatten_row(terminal)
                batch.put_rows([lane], rows)
                endpoint.last.keep_rows([index], rows)
                infos[index] = reply.final_info(row)
            endpoint.record(index, reply, row, dict(infos[index]))
        return infos

    def _hand_out(self, indices: Sequence[int], batch: Batch) -> dict[int, dict[str, Any]]:
        endpoint = self.endpoint
        infos: dict[int, dict[str, Any]] = {}
        for index in indices:
            rows, infos[index] = self._held.pop(index)
            batch.put_rows([endpoint.start + index], rows)
            endpoint.last.keep_rows([index], rows)
        endpoint.begin(indices)
        return infos
