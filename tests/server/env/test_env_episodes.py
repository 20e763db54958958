"""What an env server tells about episodes: records, counts, interruptions, in every kind of env."""

from __future__ import annotations

import time

import pytest
from gymnasium.vector import AutoresetMode

from rlmesh_gym.codec import decode_meta_map
from tests.env_wire import Code, infos, masks, pb, serving_raw
from tests.fake_envs import CountingEnv, FailingEnv, counting_vector


def brief(record: pb.EpisodeMetadata) -> tuple[str, int, int, float, bool, bool]:
    return (
        record.episode_id,
        record.env_index,
        record.step_count,
        record.cumulative_reward,
        record.terminated,
        record.truncated,
    )


def test_a_single_env_reports_its_episode_once() -> None:
    with serving_raw(CountingEnv(2)) as client:
        join = client.open()
        before = time.time_ns()
        reset = join.reset(seeds=[5], ids=["a"])
        assert client.numbers(reset) == [0.0]
        assert infos(reset) == {"kind": "reset", "rseed": 5}
        assert not join.step([3]).completed_episodes
        last = join.step([4])
        assert masks(last) == ([True], [False])
        (record,) = last.completed_episodes
        assert brief(record) == ("a", 0, 2, 7.0, True, False)
        assert record.seed == 5
        assert before <= record.start_timestamp_ns <= record.end_timestamp_ns <= time.time_ns()
        assert decode_meta_map(record.final_info) == {"kind": "step", "t": 2}
        # Nobody stops a client from stepping on; there is no second record.
        assert not join.step([1]).completed_episodes


def test_truncation_is_told_apart() -> None:
    with serving_raw(CountingEnv(1, truncate=True)) as client:
        join = client.open()
        join.reset(ids=["a"])
        step = join.step([0])
        assert masks(step) == ([False], [True])
        assert brief(step.completed_episodes[0]) == ("a", 0, 1, 0.0, False, True)
        assert not step.completed_episodes[0].HasField("seed")


def test_lanes_report_in_one_step() -> None:
    with serving_raw([CountingEnv(2), CountingEnv(2, base=100), CountingEnv(3)]) as client:
        join = client.open()
        join.reset(seeds=[7, 8, 9], ids=["a", "b", "c"])
        join.step([1, 2, 3])
        step = join.step([1, 2, 3])
        assert [brief(record) for record in step.completed_episodes] == [
            ("a", 0, 2, 2.0, True, False),
            ("b", 1, 2, 4.0, True, False),
        ]
        assert [record.seed for record in step.completed_episodes] == [7, 8]
        assert infos(step) == {
            "final_info": [{"kind": "step", "t": 2}] * 3,
            "_final_info": [True, True, False],
        }


def test_missing_ids_are_empty_and_extra_ones_ignored() -> None:
    with serving_raw([CountingEnv(1), CountingEnv(1)]) as client:
        join = client.open()
        join.reset(ids=["a"])
        assert [r.episode_id for r in join.step([0, 0]).completed_episodes] == ["a", ""]
        join.reset(ids=["a", "b", "c"])
        assert [r.episode_id for r in join.step([0, 0]).completed_episodes] == ["a", "b"]


def test_an_interrupted_episode_comes_with_the_next_step() -> None:
    with serving_raw(CountingEnv(9)) as client:
        join = client.open()
        join.reset(ids=["a"])
        join.step([2])
        join.reset(ids=["b"])
        (record,) = join.step([1]).completed_episodes
        assert brief(record) == ("a", 0, 1, 2.0, False, True)
        assert not record.HasField("final_info")
        assert not join.step([1]).completed_episodes


def test_at_most_a_hundred_interrupted_episodes_are_kept() -> None:
    with serving_raw(CountingEnv(9)) as client:
        join = client.open()
        for number in range(131):
            join.reset(ids=[str(number)])
        records = join.step([1]).completed_episodes
        assert [record.episode_id for record in records] == [str(n) for n in range(30, 130)]


def test_next_step_takes_the_new_id_with_the_roll() -> None:
    with serving_raw(counting_vector(2)) as client:
        join = client.open()
        join.reset(seeds=[3], ids=["a0", "b0"])
        join.step([1, 1], ids=["a0", "b0"])
        done = join.step([1, 1], ids=["a0", "b0"])
        assert [brief(record) for record in done.completed_episodes] == [
            ("a0", 0, 2, 2.0, True, False)
        ]
        assert done.completed_episodes[0].seed == 3
        assert decode_meta_map(done.completed_episodes[0].final_info) == {"kind": "step", "t": 2}
        roll = join.step([9, 1], ids=["a1", "b0"])
        assert client.numbers(roll) == [10.0, 103.0]
        assert list(roll.rewards) == [0.0, 1.0]
        assert [record.episode_id for record in roll.completed_episodes] == ["b0"]
        assert infos(roll) == {
            "kind": ["reset", "step"],
            "_kind": [True, True],
            "rseed": [-1, 0],
            "_rseed": [True, False],
            "t": [0, 3],
            "_t": [False, True],
        }
        join.step([1, 1], ids=["a1", "b1"])
        done = join.step([1, 1], ids=["a1", "b1"])
        (record,) = done.completed_episodes
        # The roll itself is no step of the new episode, and autoreset has no seed.
        assert brief(record) == ("a1", 0, 2, 2.0, True, False)
        assert not record.HasField("seed")


def test_one_seed_for_a_vector_is_spread_by_the_env() -> None:
    with serving_raw(counting_vector(3)) as client:
        join = client.open()
        assert infos(join.reset(seeds=[5]))["rseed"] == [5, 6, 7]
        assert infos(join.reset(seeds=[5, 1, 9]))["rseed"] == [5, 1, 9]
        assert infos(join.reset())["rseed"] == [-1, -1, -1]


def test_one_seed_for_lanes_goes_to_the_first() -> None:
    with serving_raw([CountingEnv(3) for _ in range(3)]) as client:
        join = client.open()
        for seeds, expected in (
            ([5], [5, -1, -1]),
            ([1, 2], [1, 2, -1]),
        ):
            lanes = infos(join.reset(seeds=seeds))["final_info"]
            assert [lane["rseed"] for lane in lanes] == expected


def test_same_step_learns_the_new_id_with_the_next_request() -> None:
    with serving_raw(counting_vector(2, AutoresetMode.SAME_STEP)) as client:
        join = client.open()
        join.reset(ids=["a0", "b0"])
        join.step([1, 1], ids=["a0", "b0"])
        done = join.step([1, 1], ids=["a0", "b0"])
        assert client.numbers(done) == [10.0, 102.0]
        (record,) = done.completed_episodes
        assert brief(record) == ("a0", 0, 2, 2.0, True, False)
        assert decode_meta_map(record.final_info) == {"kind": "step", "t": 2}
        done = join.step([1, 1], ids=["a1", "b0"])
        assert [r.episode_id for r in done.completed_episodes] == ["b0"]
        done = join.step([1, 1], ids=["a1", "b1"])
        assert [brief(r) for r in done.completed_episodes] == [("a1", 0, 2, 2.0, True, False)]
        # Its successor has begun, but has no id yet: nothing to tell at the end.
        assert sorted(brief(r) for r in join.close()) == [("b1", 1, 1, 1.0, False, True)]


def test_close_reports_what_was_running() -> None:
    with serving_raw([CountingEnv(2), CountingEnv(9)]) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        join.step([1, 1])
        join.step([1, 1])
        join.reset(lanes=[1], ids=["c"])
        assert [brief(record) for record in join.close()] == [
            ("b", 1, 2, 2.0, False, True),
            ("c", 1, 0, 0.0, False, True),
        ]


def test_a_new_session_knows_nothing_of_the_last_ones_episodes() -> None:
    env = CountingEnv(3)
    with serving_raw(env) as client:
        join = client.open()
        join.reset(ids=["a"])
        join.step([1])
        join.close()
        join = client.open()
        join.step([1])
        assert env.t == 2, "the env was left as it was"
        step = join.step([1])
        assert masks(step)[0] == [True]
        assert not step.completed_episodes, "nobody named that episode in this session"


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_an_autoresetting_vector_needs_a_reset_in_each_session(mode: AutoresetMode) -> None:
    vector = counting_vector(2, mode)
    with serving_raw(vector) as client:
        join = client.open()
        error = join.refused(client.step_request([1, 1]))
        assert error.code == Code.ENV_ERROR_CODE_INTERNAL
        assert "no active episode" in error.message
        assert [env.unwrapped.steps_taken for env in vector.envs] == [0, 0]  # type: ignore[attr-defined]


def test_a_failed_step_cuts_its_episodes_off() -> None:
    with serving_raw(FailingEnv(5, at=3)) as client:
        join = client.open()
        join.reset(ids=["a"])
        join.step([1])
        join.step([2])
        error = join.refused(client.step_request([3]))
        assert [brief(record) for record in error.interrupted_episodes] == [
            ("a", 0, 2, 3.0, False, True)
        ]


def test_partial_reset_of_lanes() -> None:
    with serving_raw([CountingEnv(9, base=100 * lane) for lane in range(3)]) as client:
        join = client.open()
        join.reset(ids=["a", "b", "c"])
        join.step([1, 1, 1])
        reset = join.reset(lanes=[2, 0], seeds=[5, 6], ids=["c1", "a1"])
        assert client.numbers(reset) == [210.0, 10.0]
        assert infos(reset) == {
            "final_info": [{"kind": "reset", "rseed": 5}, {"kind": "reset", "rseed": 6}],
            "_final_info": [True, True],
        }
        assert infos(join.reset(lanes=[1])) == {"kind": "reset", "rseed": -1}
        records = join.step([1, 1, 1]).completed_episodes
        assert {record.episode_id for record in records} == {"a", "b", "c"}


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_partial_reset_of_a_vector(mode: AutoresetMode) -> None:
    with serving_raw(counting_vector(3, mode)) as client:
        assert client.capabilities["rlmesh_gym.partial_reset"] == "true"
        assert "subset_step" not in client.capabilities
        join = client.open()
        join.reset(ids=["a", "b", "c"])
        join.step([1, 1, 1], ids=["a", "b", "c"])
        reset = join.reset(lanes=[2, 0], seeds=[5, 6], ids=["c1", "a1"])
        assert client.numbers(reset) == [210.0, 10.0]
        assert infos(reset) == {
            "kind": ["reset", "reset"],
            "_kind": [True, True],
            "rseed": [5, 6],
            "_rseed": [True, True],
        }
        step = join.step([1, 1, 1], ids=["a1", "b", "c1"])
        assert client.numbers(step) == [11.0, 102.0, 211.0]
        assert {record.episode_id for record in step.completed_episodes} == {"a", "c"}


def test_a_reset_mask_off_the_wire_is_an_array_for_the_env() -> None:
    with serving_raw(counting_vector(2, AutoresetMode.DISABLED)) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        join.step([1, 1])
        reset = join.reset(options={"reset_mask": [False, True]}, ids=["a", "b1"], seeds=[3, 4])
        assert client.numbers(reset) == [1.0, 110.0]
        assert infos(reset)["rseed"] == [0, 4]
        records = join.step([1, 1]).completed_episodes
        assert sorted(brief(record)[:3] for record in records) == [("a", 0, 2), ("b", 1, 1)]
        assert brief(join.close()[0]) == ("b1", 1, 1, 1.0, False, True)


def test_resetting_an_ended_lane_cancels_its_roll() -> None:
    with serving_raw(counting_vector(2)) as client:
        join = client.open()
        join.reset(ids=["a", "b"])
        join.step([1, 1])
        join.step([1, 1])
        assert client.numbers(join.reset(lanes=[0], ids=["a1"])) == [10.0]
        step = join.step([4, 1], ids=["ignored", "b"])
        assert client.numbers(step) == [11.0, 103.0]
        assert list(step.rewards) == [4.0, 1.0]
        step = join.step([4, 1], ids=["a1", "b1"])
        assert [brief(r) for r in step.completed_episodes] == [("a1", 0, 2, 8.0, True, False)]


def test_options_reach_the_lanes_as_they_were_sent() -> None:
    env = CountingEnv(3)
    with serving_raw(env) as client:
        join = client.open()
        join.reset()
        assert env.last_options is None
        join.reset(options={})
        assert env.last_options == {}
        options = {"level": 3, "names": ["x", None], "deep": {"on": True}, "raw": b"\x00"}
        join.reset(options=options)
        assert env.last_options == options
