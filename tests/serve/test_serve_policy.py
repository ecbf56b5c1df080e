"""A policy serves actions to an application, in process and over HTTP, and logs its decisions."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast import PolicyClient, PolicyServer, UnknownEpisode
from hindcast.api.model import ModelSpec
from hindcast.datasets.opening import open_dataset
from hindcast.errors import DataError, SpecError, StorageError
from hindcast.models.greedy_policy import GreedyPolicy
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule, build_module
from hindcast.serve.client import Unreachable
from hindcast.serve.http_server import HttpServer
from hindcast.storage.location import resolve
from support import WALK, make_policy, read_all
from toy_environments import Composite, Walk

TOKEN = "a token"
STEERED_ENVIRONMENT = {"id": "toy_environments:SteeredWalk"}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy(WALK)


@pytest.fixture
def server(policy: Policy, tmp_path: Path) -> Iterator[PolicyServer]:
    """Serve the policy in this process, with its log in `tmp_path / "log"`."""
    with PolicyServer(policy, tmp_path / "log", explore=True, seed=0) as server:
        yield server


@pytest.fixture
def http_server(server: PolicyServer) -> Iterator[HttpServer]:
    """Serve `server` over HTTP; requests may have 1,000 bytes."""
    with HttpServer(server, TOKEN, max_body_bytes=1000) as http_server:
        yield http_server


@pytest.fixture(scope="module")
def shared_http_server(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """Serve a policy whose episode "r" has an action; requests may have 1,000 bytes."""
    with (
        PolicyServer(policy, tmp_path_factory.mktemp("shared") / "log", explore=True) as server,
        HttpServer(server, TOKEN, max_body_bytes=1000) as http_server,
    ):
        server.start_episode("r")
        server.log_action("r", np.zeros(4), 0, action_logp=0.0)
        yield http_server


@pytest.fixture
def client(http_server: HttpServer) -> Iterator[PolicyClient]:
    with PolicyClient(address_of(http_server), TOKEN) as client:
        yield client


def address_of(http_server: HttpServer) -> str:
    return f"http://{http_server.host}:{http_server.port}"


def play(policy_server: Any, environment: gym.Env, seed: int) -> list[Any]:
    """Play one episode as an application of a server or client does; return the served actions."""
    observation, _ = environment.reset(seed=seed)
    episode, actions, is_done = policy_server.start_episode(), [], False
    while not is_done:
        actions.append(policy_server.get_action(episode, observation))
        observation, reward, terminated, truncated, _ = environment.step(actions[-1])
        policy_server.log_returns(episode, reward)
        is_done = terminated or truncated
    policy_server.end_episode(episode, observation, terminated=terminated, truncated=truncated)
    return actions


@pytest.mark.parametrize("explore", [True, False])
def test_server_acts_as_the_run_judges_its_policy(policy: Policy, tmp_path: Path, explore: bool) -> None:
    policy.save(resolve(tmp_path / "module"))
    resource = {"kind": "OfflineTraining", "spec": {"evaluation": {"explore": explore}}}
    (tmp_path / "spec.json").write_text(json.dumps({"spec": resource}))
    with PolicyServer(tmp_path / "module", tmp_path / "log") as server:
        assert server.explore == explore
    with PolicyServer(policy, tmp_path / "other") as server:
        assert not server.explore


def test_log_equals_a_recording(policy: Policy, tmp_path: Path) -> None:
    environment = Walk()
    with PolicyServer(policy, tmp_path / "log", explore=True, seed=0) as server:
        actions = [action for seed in range(3) for action in play(server, environment, seed)]
    spec, block = open_dataset(str(tmp_path / "log")).spec, read_all(tmp_path / "log")
    assert spec.normalized_actions
    assert (spec.observation_space, spec.action_space) == (policy.observation_space, policy.action_space)
    assert block.columns["actions"].tolist() == actions
    inputs = torch.from_numpy(block.columns["action_dist_inputs"])
    expected_logp = policy.module.distribution(inputs).logp(torch.from_numpy(block.columns["actions"]))
    np.testing.assert_allclose(block.columns["action_logp"], expected_logp.numpy(), rtol=1e-5)
    assert block.columns["rewards"].tolist() == [float(action) for action in actions]


def test_scaled_actions_are_logged_in_module_units(tmp_path: Path) -> None:
    policy = make_policy(STEERED_ENVIRONMENT)
    with PolicyServer(policy, tmp_path / "log", explore=True, seed=0) as server:
        episode = server.start_episode()
        env_action = server.get_action(episode, np.zeros(4))
        server.log_action(episode, np.zeros(4), [-0.5, 1.5], action_logp=0.0)  # the middle of its space
        server.end_episode(episode, np.zeros(4))
        with pytest.raises(DataError, match=r"log_action: actions is \[5, 0\], which is outside its space"):
            server.log_action(server.start_episode(), np.zeros(4), [5, 0], action_logp=0.0)
    columns = read_all(tmp_path / "log").columns
    actions, half_ranges = columns["actions"], (policy.action_space.high - policy.action_space.low) / 2
    np.testing.assert_allclose(policy.preprocessing.to_env({"actions": actions[:1]})[0], env_action)
    assert actions[1].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(columns["action_logp"][1], np.log(half_ranges).sum(), rtol=1e-5)


@pytest.mark.parametrize("module_class", [None, GreedyPolicy])
def test_episodes_have_separate_frames_and_recurrent_states(
    tmp_path: Path, module_class: type[RLModule] | None
) -> None:
    policy = make_policy(WALK, module_class=module_class, frameStack=2, recurrent="LSTM", cellSize=4)
    observations = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    with PolicyServer(policy, tmp_path / "log", explore=False) as server:
        first_id, second_id = server.start_episode(), server.start_episode()
        for t, observation in enumerate(observations):
            server.get_action(first_id, observation)
            if t % 2:  # the application decides, and only the policy's state advances
                server.log_action(second_id, -observation, 0, action_logp=0.0)
            else:
                server.get_action(second_id, -observation)
        for episode in (first_id, second_id):
            server.end_episode(episode, observations[0])
    block = read_all(tmp_path / "log")
    states = [policy.begin() for _ in range(2)]
    expected = [
        [policy.decide(acting_state, sign * row).dist_inputs[0] for row in observations]
        for acting_state, sign in zip(states, (1, -1), strict=True)
    ]
    indices = [block.eps_id.tolist().index(id_) for id_ in (first_id, second_id)]
    dist_inputs = block.take(indices).columns["action_dist_inputs"].reshape(2, 6, -1)
    np.testing.assert_allclose(dist_inputs, expected, rtol=1e-5)


def test_log_action_requires_action_logp(server: PolicyServer) -> None:
    episode = server.start_episode()
    with pytest.raises(DataError, match="log_action requires action_logp, the log-probability"):
        server.log_action(episode, np.zeros(4), 1)
    with pytest.raises(DataError, match="actions is 3, which is outside its space"):
        server.log_action(episode, np.zeros(4), 3, action_logp=0.0)


def test_actions_and_log_over_http_are_the_same(policy: Policy, tmp_path: Path) -> None:
    environment = Walk()
    with PolicyServer(policy, tmp_path / "here", explore=True, seed=0) as server:
        local_actions = [play(server, environment, seed) for seed in range(3)]
    with (
        PolicyServer(policy, tmp_path / "there", explore=True, seed=0) as server,
        HttpServer(server, TOKEN) as http_server,
        PolicyClient(address_of(http_server), TOKEN) as client,
    ):
        http_actions = [play(client, environment, seed) for seed in range(3)]
    assert http_actions == local_actions
    local_log, http_log = read_all(tmp_path / "here"), read_all(tmp_path / "there")
    for name, column in local_log.columns.items():
        assert np.array_equal(column, http_log.columns[name]), name


def test_composite_spaces_are_served_over_http(tmp_path: Path) -> None:
    policy = make_policy({"id": "toy_environments:Composite"})
    environment = Composite()
    with (
        PolicyServer(policy, tmp_path / "log", explore=True, seed=0) as server,
        HttpServer(server, TOKEN) as http_server,
        PolicyClient(address_of(http_server), TOKEN) as client,
    ):
        play(client, environment, seed=0)
    assert read_all(tmp_path / "log").num_episodes == 1


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(
    ("actions", "offset"),
    [
        (gym.spaces.Discrete(5, start=2), -2),
        (gym.spaces.MultiDiscrete([2, 3], start=[0, 4]), np.array([0, -2])),
    ],
    ids=["discrete", "elements"],
)
def test_actions_over_http_are_those_that_the_masks_allow(
    tmp_path: Path, explore: bool, actions: gym.Space, offset: Any
) -> None:
    """`offset` turns the action's elements into the columns of the mask."""
    observations = gym.spaces.Dict(
        {"action_mask": gym.spaces.MultiBinary(5), "observations": gym.spaces.Box(-1, 1, (2,))}
    )
    model = ModelSpec(fcnet_hiddens=[8])
    module = build_module(observations, actions, model)
    policy = Policy(
        module.eval(), Preprocessing.from_specs(observations, actions, model), observations, actions
    )
    rng = np.random.default_rng(0)
    with (
        PolicyServer(policy, tmp_path / "log", explore=explore, seed=0) as server,
        HttpServer(server, TOKEN) as http_server,
        PolicyClient(address_of(http_server), TOKEN) as client,
    ):
        episode = client.start_episode()
        for _ in range(30):
            mask = np.concatenate([rng.permutation([1, 0]), rng.permutation([1, 0, 0])]).astype(np.int8)
            observation = {"action_mask": mask, "observations": rng.uniform(-1, 1, 2).astype(np.float32)}
            assert mask[client.get_action(episode, observation) + offset].all()
            client.log_returns(episode, 1.0)
        client.end_episode(episode, observation)
    log = read_all(tmp_path / "log").columns
    columns = (log["actions"] + offset).reshape(30, -1)
    assert np.take_along_axis(log["obs/action_mask"][:30], columns, 1).all()


def send_request(http_server: HttpServer, method: str, body: str, **headers: str) -> tuple[int, Any]:
    """Send a POST with the right token; return status and document."""
    connection = http.client.HTTPConnection(http_server.host, http_server.port, timeout=10)
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    connection.request("POST", f"/{method}", body, headers)
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    return response.status, document


def test_repeated_request_counts_once(server: PolicyServer, http_server: HttpServer) -> None:
    episode = server.start_episode()
    for _ in range(2):
        document = json.dumps({"episode_id": episode, "observation": [0, 0, 0, 0]})
        first_answer = send_request(http_server, "get_action", document, Idempotency_Key="one")
        returns_document = json.dumps({"episode_id": episode, "reward": 1})
        assert send_request(http_server, "log_returns", returns_document, Idempotency_Key="two") == (200, {})
    assert first_answer == send_request(http_server, "get_action", document, Idempotency_Key="one")
    server.end_episode(episode, np.zeros(4))
    server.close()
    block = read_all(Path(server.log._folder.path))
    assert (block.length.tolist(), block.columns["rewards"].tolist()) == ([1], [1.0])


def test_same_requests_at_the_same_time_are_executed_once_before_close(
    server: PolicyServer, http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, may_return = [], threading.Event()

    def end_episode(**arguments: Any) -> None:
        calls.append(arguments)
        may_return.wait()

    monkeypatch.setattr(server, "end_episode", end_episode)
    document = json.dumps({"episode_id": "a", "observation": [0, 0, 0, 0]})
    with ThreadPoolExecutor() as pool:
        answers = [
            pool.submit(send_request, http_server, "end_episode", document, Idempotency_Key="one")
            for _ in range(3)
        ]
        while not calls:
            time.sleep(0.01)
        assert send_request(http_server, "unknown", "{}")[0] == 404  # other requests do not wait
        closing = pool.submit(http_server.close)
        may_return.set()
        closing.result()
        assert [answer.result() for answer in answers] == [(200, {})] * 3
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("method", "argument"),
    [("log_returns", {"reward": 1}), ("end_episode", {"observation": [0, 0, 0, 0]})],
    ids=["in the event loop", "in a thread"],
)
def test_repeated_request_after_failed_storage_is_executed(
    method: str,
    argument: dict[str, Any],
    server: PolicyServer,
    http_server: HttpServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = iter([StorageError("the disk is full")])

    def fail_once(**_: Any) -> None:
        for error in errors:
            raise error

    monkeypatch.setattr(server, method, fail_once)
    body = json.dumps({"episode_id": "a", **argument})
    statuses = [send_request(http_server, method, body, Idempotency_Key="one")[0] for _ in range(2)]
    assert statuses == [503, 200]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"place": [0.0, 1.0]}, "a value does not have the structure of its space: it has no part 'kind'"),
        (
            {"place": [0.0, 1.0], "kind": [1, [0, 1]], "kinds": 2},
            "has the parts obs/kind/0, obs/kind/1, obs/kinds, obs/place, expected",
        ),
        (3, "a value does not have the structure of its space"),
    ],
    ids=["missing", "unknown", "number"],
)
def test_parts_other_than_those_of_the_space_are_named(
    tmp_path: Path, observation: Any, message: str
) -> None:
    policy = make_policy({"id": "toy_environments:Composite"})
    with PolicyServer(policy, tmp_path / "log") as server, HttpServer(server, TOKEN) as http_server:
        body = json.dumps({"episode_id": server.start_episode(), "observation": observation})
        status, document = send_request(http_server, "get_action", body)
    assert status == 400
    assert message in document["error"]


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("get_action", "{", (400, "the request is not JSON")),
        ("get_action", "[]", (400, "the request is list, expected an object")),
        ("get_action", '{"episode_id": "a"}', (400, "get_action requires observation")),
        ("get_action", '{"episode_id": 1, "observation": []}', (400, "episode_id is 1, expected text")),
        ("start_episode", '{"name": "a"}', (400, "start_episode has no name: its fields are episode_id")),
        ("get_action", '{"episode_id": "a", "observation": [0,0,0,0]}', (404, "episode 'a' is not running")),
        (
            "get_action",
            '{"episode_id": "r", "observation": [0,0]}',
            (400, "obs has the shape [2], expected [4]"),
        ),
        ("get_action", '{"episode_id": "r", "observation": [[],0]}', (400, "obs is not an array")),
        (
            "get_action",
            '{"episode_id": "r", "observation": {"x": 0}}',
            (400, "the observation has the parts obs/x"),
        ),
        (
            "log_returns",
            '{"episode_id": "r", "reward": null}',
            (400, "the reward is None, expected a number"),
        ),
        ("log_returns", '{"episode_id": "r", "reward": 1, "info": 3}', (400, "the info cannot be stored")),
        ("close", "{}", (404, "unknown method 'close': the methods are start_episode, get_action")),
        ("get_action", " " * 1001, (413, "the request has 1001 bytes; at most 1000 are allowed")),
    ],
)
def test_invalid_request_is_answered_with_one_line(
    method: str, body: str, expected: tuple[int, str], shared_http_server: HttpServer
) -> None:
    status, document = send_request(shared_http_server, method, body)
    assert status == expected[0]
    assert expected[1] in document["error"]
    assert "\n" not in document["error"]
    assert send_request(shared_http_server, "start_episode", "{}")[0] == 200


def test_wrong_token_is_refused_and_not_echoed(
    client: PolicyClient,
    http_server: HttpServer,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    for wrong_token in ("", "a secret", f"{TOKEN}s", "ünïcode"):
        status, document = send_request(
            http_server,
            "start_episode",
            "{}",
            Authorization=f"Bearer {wrong_token}".encode().decode("latin-1"),
        )
        assert (status, document["error"].partition(":")[0]) == (401, "the token is missing or wrong")
    with (
        PolicyClient(address_of(http_server), "a secret") as wrong_client,
        pytest.raises(SpecError, match="the token is missing or wrong: send Authorization") as error_info,
    ):
        wrong_client.start_episode()
    client.start_episode()
    output = f"{caplog.text}{error_info.value}{''.join(capfd.readouterr())}"
    assert "secret" not in output
    assert TOKEN not in output


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST /health SPDY/3\r\n\r\n", b"400"),
        (b"PUT /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"405"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\nCONNECTION: Close\r\n\r\n", b"200"),
    ],
    ids=["no request", "another protocol", "another verb", "large headers", "1.0", "closes"],
)
def test_raw_request_is_answered_and_connection_closed(
    shared_http_server: HttpServer, request_: bytes, status: bytes
) -> None:
    address = (shared_http_server.host, shared_http_server.port)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(request_)
        with suppress(ConnectionResetError):  # the server may close before it has read the whole request
            answer = connection.makefile("rb").readline()
            assert answer.split()[1] == status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\nX: ", b""),
        (
            b"POST /start_episode HTTP/1.1\r\nContent-Length: 5\r\nAuthorization: Bearer a token\r\n\r\n",
            b"408",
        ),
    ],
    ids=["nothing", "part of the headers", "part of the request"],
)
def test_connection_without_complete_request_is_closed(
    request_: bytes, status: bytes, server: PolicyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindcast.serve.http_server._IDLE_TIMEOUT_SECONDS", 0.1)
    with (
        HttpServer(server, TOKEN) as http_server,
        socket.create_connection((http_server.host, http_server.port), timeout=10) as connection,
    ):
        connection.sendall(request_)
        assert connection.makefile("rb").read().partition(b"HTTP/1.1 ")[2][:3] == status


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.1\r\nX: ",
        b"GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nX: ",
        b"POST /unknown HTTP/1.1\r\nContent-Length: 500\r\nAuthorization: Bearer a token\r\n\r\n",
    ],
    ids=["headers", "headers of the second request", "body of an answered request"],
)
def test_connection_of_slow_client_is_closed(
    request_: bytes, server: PolicyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindcast.serve.http_server._IDLE_TIMEOUT_SECONDS", 0.2)
    with (
        HttpServer(server, TOKEN) as http_server,
        socket.create_connection((http_server.host, http_server.port), timeout=0.02) as connection,
    ):
        connection.sendall(request_)
        for _ in range(250):  # 5 seconds; the body has no more bytes
            with suppress(TimeoutError):
                if not connection.recv(1000):
                    break
            connection.sendall(b"x")
        else:
            pytest.fail("the connection is still open")


def test_request_without_length_is_limited_too(shared_http_server: HttpServer) -> None:
    connection = http.client.HTTPConnection(shared_http_server.host, shared_http_server.port, timeout=10)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for size, status in ((100, 400), (101, 413)):  # the document is spaces, which is not JSON
        connection.request("POST", "/get_action", iter([b" " * 10] * size), headers, encode_chunked=True)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_health_check_answers(shared_http_server: HttpServer) -> None:
    connection = http.client.HTTPConnection(shared_http_server.host, shared_http_server.port, timeout=10)
    for path, status in (("/health", 200), ("/else", 405)):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_client_raises_error_for_each_failure(
    client: PolicyClient, http_server: HttpServer, server: PolicyServer
) -> None:
    with pytest.raises(UnknownEpisode, match="episode 'a' is not running"):
        client.log_returns("a", 1.0)
    episode = client.start_episode()
    with pytest.raises(DataError, match="obs has the shape"):
        client.get_action(episode, [0.0])
    with pytest.raises(DataError, match="is already running"):
        client.start_episode(episode)
    server.log.close()
    with pytest.raises(Unreachable, match="open another EpisodeWriter"):
        client.start_episode()
    http_server.close()
    with pytest.raises(Unreachable, match="does not answer"):
        PolicyClient(address_of(http_server), TOKEN, timeout_s=1).start_episode()
    with pytest.raises(SpecError, match="the address is 'localhost:80', expected http://host:port"):
        PolicyClient("localhost:80", TOKEN)
    with pytest.raises(StorageError, match=r"cannot listen at 203\.0\.113\.1:"):
        HttpServer(server, TOKEN, host="203.0.113.1")
