"""gRPC statuses to errors, and the errors' way through pickle."""

from __future__ import annotations

import pickle

import grpc
import pytest

from rlmesh_gym import errors
from rlmesh_gym.rpc.status import error_from_status, premature_end


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        ("UNAVAILABLE", errors.UnavailableError, "lost"),
        ("CANCELLED", errors.UnavailableError, "cancelled"),
        ("DEADLINE_EXCEEDED", errors.DeadlineError, "no answer in time"),
        ("FAILED_PRECONDITION", errors.SessionRefusedError, "no further session"),
        ("UNAUTHENTICATED", errors.AuthenticationError, "RLMESH_GYM_TOKEN"),
        ("PERMISSION_DENIED", errors.AuthenticationError, "token"),
        ("UNIMPLEMENTED", errors.ProtocolError, "not an rlmesh env endpoint"),
        ("OUT_OF_RANGE", errors.ProtocolError, "256 MiB"),
        ("RESOURCE_EXHAUSTED", errors.ProtocolError, "fewer lanes"),
        ("INTERNAL", errors.ProtocolError, "INTERNAL: the details"),
        ("UNKNOWN", errors.ProtocolError, "UNKNOWN: the details"),
    ],
)
def test_table(code: str, expected: type[errors.RemoteError], words: str) -> None:
    error = error_from_status(
        grpc.StatusCode[code], "the details", endpoint="tcp://h:1", operation="step", kind="env"
    )
    assert type(error) is expected
    assert str(error).startswith("tcp://h:1: ")
    assert words in str(error)
    assert "the details" in str(error)
    assert (error.endpoint, error.operation) == ("tcp://h:1", "step")


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE"])
def test_goaway_is_a_lost_connection(code: str) -> None:
    error = error_from_status(
        grpc.StatusCode[code],
        "GOAWAY received; Error code: 11; Debug Text: too_many_data_frames",
        endpoint="tcp://h:1",
        operation="step",
        kind="env",
    )
    assert type(error) is errors.UnavailableError


def test_every_status_has_an_error() -> None:
    for code in grpc.StatusCode:
        error = error_from_status(code, None, endpoint="e", operation="step", kind="model")
        assert isinstance(error, errors.RemoteError)
        assert "no details" in str(error)


def test_premature_end_names_the_limit() -> None:
    small = premature_end(endpoint="e", operation="step", request_bytes=10)
    assert isinstance(small, errors.UnavailableError)
    large = premature_end(endpoint="e", operation="step", request_bytes=300 * 2**20)
    assert isinstance(large, errors.ProtocolError)
    assert "300 MiB" in str(large)


def test_errors_survive_pickling() -> None:
    error = error_from_status(
        grpc.StatusCode.DEADLINE_EXCEEDED, "late", endpoint="e", operation="step", kind="env"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.DeadlineError
    assert (str(copy), copy.endpoint, copy.operation) == (str(error), "e", "step")


def test_the_text_of_a_peer_does_not_act_on_a_terminal() -> None:
    text = "no\x1b[2J room\n\tfor you\u202e"
    error = error_from_status(
        grpc.StatusCode.UNAVAILABLE, text, endpoint="tcp://h:1", operation="step", kind="env"
    )
    assert "no\ufffd[2J room\n\tfor you\ufffd" in str(error)
    assert str(errors.EnvError("\x07bell", endpoint="h")) == "h: \ufffdbell"
