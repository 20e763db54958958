"""The protocol's rules for models, as the package ships them, on our server and on broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

from rlmesh_gym.errors import ConfigurationError, ModelError, UnavailableError
from rlmesh_gym.model import ModelHandler, PredictFrames
from rlmesh_gym.server.model.stream import ModelStream
from rlmesh_gym.testing import (
    MODEL_RULES,
    BrokenRuleError,
    check_model_endpoint,
    model_rule_results,
    serving_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOX = spaces.Box(-1, 1, (3,), np.float32)
MOVES = spaces.Discrete(4)


def still(observation: Any) -> Any:
    return np.zeros(len(observation), np.int64)


class Chunks(ModelHandler):
    """Gives four frames."""

    def predict_chunked(self, observation: Any) -> PredictFrames:
        actions = still(observation.observation)
        return PredictFrames(actions, [actions] * 3)


MODELS: dict[str, Callable[[], Any]] = {"function": lambda: still, "chunks": Chunks}


@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_our_server_keeps_the_rules(make: Callable[[], Any]) -> None:
    with serving_model(make(), token="t") as address:
        results = list(model_rule_results(address, BOX, MOVES, token="t"))
    assert [one.outcome for one in results] == ["passed"] * len(MODEL_RULES)


def test_composite_spaces() -> None:
    observed = spaces.Dict(image=spaces.Box(0, 255, (4, 4), np.uint8), state=BOX)
    acted = spaces.Tuple((MOVES, BOX))

    def act(observation: Any) -> Any:
        rows = len(observation["state"])
        return np.zeros(rows, np.int64), np.zeros((rows, 3), np.float32)

    with serving_model(act) as address:
        assert len(check_model_endpoint(address, observed, acted)) == len(MODEL_RULES)


def test_nobody_there() -> None:
    with serving_model(still) as address:
        pass
    with pytest.raises(UnavailableError):
        check_model_endpoint(address, BOX, MOVES)
    none: Any = None
    with pytest.raises(ConfigurationError, match="need a space"):
        check_model_endpoint(address, none, MOVES)


def no_frames(response: Any) -> None:
    if response.HasField("predict"):
        response.predict.ClearField("actions")


def wild_actions(response: Any) -> None:
    for frame in response.predict.actions if response.HasField("predict") else ():
        frame.leaves[0] = b"\x09" * len(frame.leaves[0])


def short_actions(response: Any) -> None:
    for frame in response.predict.actions if response.HasField("predict") else ():
        frame.leaves[0] = frame.leaves[0][:-1]


def takes_anything(response: Any) -> None:
    if response.HasField("error"):
        response.predict.SetInParent()


def cannot_release(response: Any) -> None:
    if response.HasField("release_adapter"):
        response.error.message = "not now"


BROKEN: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "no frames": (no_frames, "predict", "the answer holds no action frame"),
    "wild": (wild_actions, "predict", "action frame 0 leaves its domain"),
    "short": (short_actions, "predict", "action frame 0 does not fit 1 rows"),
    "anything": (takes_anything, "unknown environments", "expected an error NOT_CONFIGURED"),
    "release": (cannot_release, "release", "not now"),
}


@pytest.mark.parametrize(("tamper", "rule", "text"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_rule_is_named(
    monkeypatch: pytest.MonkeyPatch, tamper: Callable[[Any], None], rule: str, text: str
) -> None:
    honest = ModelStream.responses

    def responses(self: ModelStream) -> Iterator[Any]:
        for response in honest(self):
            tamper(response)
            yield response

    monkeypatch.setattr(ModelStream, "responses", responses)
    with serving_model(still) as address:
        failed = [one for one in model_rule_results(address, BOX, MOVES) if one.error]
        assert failed[0].rule == rule
        assert text in failed[0].detail
        with pytest.raises((BrokenRuleError, ModelError), match=text):
            check_model_endpoint(address, BOX, MOVES)


def test_a_model_that_takes_one_row_lacks_rows() -> None:
    def one(observation: Any) -> Any:
        if len(observation) > 1:
            raise ValueError("one at a time")
        return still(observation)

    with serving_model(one) as address:
        results = {result.rule: result for result in model_rule_results(address, BOX, MOVES)}
    assert results["rows"].outcome == "lacking"
    assert "one at a time" in results["rows"].detail
    assert {result.outcome for result in results.values()} == {"passed", "lacking"}
