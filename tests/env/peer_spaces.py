"""An env whose observation holds every space that the released package serves too."""

from __future__ import annotations

from gymnasium import spaces

from tests.fake_envs import AllSpacesEnv


class PeerSpacesEnv(AllSpacesEnv):
    """As ``AllSpacesEnv``, without the 0-d Box that the package refuses."""

    def __init__(self, length: int = 6) -> None:
        super().__init__(length)
        whole = self.observation_space
        assert isinstance(whole, spaces.Dict)
        self.observation_space = spaces.Dict(
            {key: space for key, space in whole.spaces.items() if key != "wide"}
        )
