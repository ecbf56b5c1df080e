"""The bare arithmetic of updates: plain torch with each algorithm's matrix products, losses and Adam steps, no more.

Each algorithm has one function, which returns a function that makes one update with a batch. There are no metrics, no
clipping, no checks and no options.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch: TypeAlias = dict[str, Tensor]
Update: TypeAlias = Callable[[Batch], None]

OBSERVATIONS, ACTIONS, HIDDEN = 17, 6, 256
TAU, NUM_SAMPLES, NUM_CRITICS = 0.005, 10, 10


def bc(device: str) -> Update:
    """Return an update of behaviour cloning by maximum likelihood."""
    policy = _mlp(OBSERVATIONS, 2 * ACTIONS).to(device)
    adam = _adam(policy.parameters(), 1e-4)

    def update(batch: Batch) -> None:
        _step(adam, -_logp(policy(batch["obs"]), batch["actions"]).mean())

    return update


def iql(device: str) -> Update:
    """Return an update of IQL: V first; then policy and critics in one step."""
    policy, value, critics = _mlp(OBSERVATIONS, 2 * ACTIONS), _mlp(OBSERVATIONS, 1), _TwinCritics()
    policy, value, critics = policy.to(device), value.to(device), critics.to(device)
    target_critics = copy.deepcopy(critics).requires_grad_(False)
    value_adam, other_adam = (
        _adam(value.parameters(), 3e-4),
        _adam([*policy.parameters(), *critics.parameters()], 3e-4),
    )

    def update(batch: Batch) -> None:
        obs, actions = batch["obs"], batch["actions"]
        with torch.no_grad():
            q = torch.minimum(*target_critics(obs, actions))
        advantage = q - value(obs).squeeze(-1)
        _step(value_adam, (torch.where(advantage < 0, 0.3, 0.7) * advantage.square()).mean())
        with torch.no_grad():
            weights = (3.0 * (q - value(obs).squeeze(-1))).exp().clamp(max=100.0)
            td_target = batch["rewards"] + batch["discounts"] * value(batch["new_obs"]).squeeze(-1)
        policy_loss = -(weights * _logp(policy(obs), actions)).mean()
        _step(other_adam, policy_loss + _squared_error(critics(obs, actions), td_target))
        _polyak_update(target_critics, critics)

    return update


def td3bc(device: str) -> Update:
    """Return an update of TD3+BC; every second one also updates the policy and the target networks."""
    policy, critics = _mlp(OBSERVATIONS, ACTIONS).to(device), _TwinCritics().to(device)
    target_policy, target_critics = (copy.deepcopy(net).requires_grad_(False) for net in (policy, critics))
    policy_adam, critic_adam = _adam(policy.parameters(), 3e-4), _adam(critics.parameters(), 3e-4)
    updates = 0

    def update(batch: Batch) -> None:
        nonlocal updates
        obs, next_obs = batch["obs"], batch["new_obs"]
        with torch.no_grad():
            next_actions = torch.tanh(target_policy(next_obs))
            noise = (0.2 * torch.randn_like(next_actions)).clamp(-0.5, 0.5)
            next_actions = (next_actions + noise).clamp(-1.0, 1.0)
            td_target = batch["rewards"] + batch["discounts"] * torch.minimum(
                *target_critics(next_obs, next_actions)
            )
        _step(critic_adam, _squared_error(critics(obs, batch["actions"]), td_target))
        updates += 1
        if updates % 2:
            return
        policy_actions = torch.tanh(policy(obs))
        values = critics.first(torch.cat([obs, policy_actions], -1))
        cloning_loss = (policy_actions - batch["actions"]).square().mean()
        _step(policy_adam, cloning_loss - 2.5 * values.mean() / values.detach().abs().mean())
        _polyak_update(target_critics, critics)
        _polyak_update(target_policy, policy)

    return update


def dqn(device: str, penalty: float = 0.0) -> Update:
    """Return an update of double DQN; the target network is updated too rarely to count."""
    values = _mlp(OBSERVATIONS, ACTIONS).to(device)
    target_values = copy.deepcopy(values).requires_grad_(False)
    adam = _adam(values.parameters(), 5e-4)

    def update(batch: Batch) -> None:
        actions, next_obs = batch["actions"].unsqueeze(-1), batch["new_obs"]
        with torch.no_grad():
            best_actions = values(next_obs).argmax(-1, keepdim=True)
            td_target = batch["rewards"] + batch["discounts"] * target_values(next_obs).gather(
                -1, best_actions
            ).squeeze(-1)
        all_values = values(batch["obs"])
        q_taken = all_values.gather(-1, actions).squeeze(-1)
        loss = functional.huber_loss(q_taken, td_target)
        if penalty:
            loss = loss + penalty * (all_values.logsumexp(-1) - q_taken).mean()
        _step(adam, loss)

    return update


def discrete_cql(device: str) -> Update:
    """Return an update of discrete CQL: DQN with a penalty."""
    return dqn(device, penalty=1.0)


def cql(device: str, is_conservative: bool = True) -> Update:
    """Return an update of CQL, with 30 actions per state and a trained weight of their penalty."""
    policy, critics = _mlp(OBSERVATIONS, 2 * ACTIONS).to(device), _TwinCritics().to(device)
    target_critics = copy.deepcopy(critics).requires_grad_(False)
    log_alpha, log_weight = (torch.zeros((), device=device, requires_grad=True) for _ in range(2))
    policy_adam, critic_adam = _adam(policy.parameters(), 1e-4), _adam(critics.parameters(), 3e-4)
    alpha_adam, weight_adam = _adam([log_alpha], 1e-4), _adam([log_weight], 3e-4)
    num_samples = NUM_SAMPLES if is_conservative else 0

    def update(batch: Batch) -> None:
        obs, next_obs, actions = batch["obs"], batch["new_obs"], batch["actions"]
        with torch.no_grad():
            next_actions, next_logp = _sample_actions(policy(next_obs), num_samples + 1)
            next_v = torch.minimum(*target_critics(next_obs, next_actions[0]))
            if not is_conservative:
                next_v = next_v - log_alpha.exp() * next_logp[0]
            td_target = batch["rewards"] + batch["discounts"] * next_v
        q_taken = critics(obs, actions)
        loss = _squared_error(q_taken, td_target)
        if is_conservative:
            with torch.no_grad():
                current_actions, current_logp = _sample_actions(policy(obs), num_samples)
                uniform = torch.rand_like(current_actions) * 2.0 - 1.0
                other_actions = torch.cat([uniform, current_actions, next_actions[1:]])
                density = torch.full_like(current_logp, -ACTIONS * math.log(2.0))
                densities = torch.cat([density, current_logp, next_logp[1:]])
            pairs = zip(
                critics(obs.expand(len(other_actions), *obs.shape), other_actions), q_taken, strict=True
            )
            gaps = torch.stack(
                [5.0 * (torch.logsumexp(q - densities, 0) - q_of_taken).mean() for q, q_of_taken in pairs]
            )
            weight = log_weight.exp().clamp(max=1e6)
            loss = loss + (weight.detach() * (gaps - 5.0)).sum()
            _step(weight_adam, -0.5 * (weight * (gaps.detach() - 5.0)).sum())
        _step(critic_adam, loss)
        sampled_actions, logp = _sample_actions(policy(obs), 1)
        q = torch.minimum(*critics(obs, sampled_actions[0]))
        _step(policy_adam, (log_alpha.detach().exp() * logp[0] - q).mean())
        _step(alpha_adam, -log_alpha * (logp.detach().mean() - ACTIONS))
        _polyak_update(target_critics, critics)

    return update


def sac(device: str) -> Update:
    """Return an update of SAC: CQL without its penalty, and with the entropy in the targets."""
    return cql(device, is_conservative=False)


def edac(device: str) -> Update:
    """Return an update of EDAC: SAC with ten critics, whose gradients with respect to the action are diversified."""
    policy = _mlp(OBSERVATIONS, 2 * ACTIONS).to(device)
    critics = nn.ModuleList(_mlp(OBSERVATIONS + ACTIONS, 1) for _ in range(NUM_CRITICS)).to(device)
    target_critics = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.zeros((), device=device, requires_grad=True)
    policy_adam, critic_adam = _adam(policy.parameters(), 3e-4), _adam(critics.parameters(), 3e-4)
    alpha_adam = _adam([log_alpha], 3e-4)
    others = 1.0 - torch.eye(NUM_CRITICS, device=device)

    def evaluate(networks: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
        pairs = torch.cat([obs, actions], -1)
        return torch.stack([network(pairs).squeeze(-1) for network in networks])

    def update(batch: Batch) -> None:
        obs, next_obs, actions = batch["obs"], batch["new_obs"], batch["actions"].detach().requires_grad_()
        with torch.no_grad():
            next_actions, next_logp = _sample_actions(policy(next_obs), 1)
            next_v = evaluate(target_critics, next_obs, next_actions[0]).amin(0)
            td_target = batch["rewards"] + batch["discounts"] * (next_v - log_alpha.exp() * next_logp[0])
        pairs = torch.cat([obs, actions], -1)
        values = [critic(pairs).squeeze(-1) for critic in critics]
        q, gradients = (
            torch.stack(values),
            torch.stack(
                [torch.autograd.grad(value.sum(), actions, create_graph=True)[0] for value in values]
            ),
        )
        directions = functional.normalize(gradients, dim=-1)
        cosines = torch.einsum("iba,jba->bij", directions, directions)
        similarity = (cosines * others).sum((-2, -1)).mean() / (NUM_CRITICS - 1)
        _step(critic_adam, (q - td_target).square().mean(-1).sum() + similarity)
        sampled_actions, logp = _sample_actions(policy(obs), 1)
        policy_q = evaluate(critics, obs, sampled_actions[0]).amin(0)
        _step(policy_adam, (log_alpha.detach().exp() * logp[0] - policy_q).mean())
        _step(alpha_adam, -log_alpha * (logp.detach().mean() - ACTIONS))
        _polyak_update(target_critics, critics)

    return update


def capture_update(update: Update, batches: list[Batch]) -> Update:
    """Capture two updates as a CUDA graph, which every second call replays, since TD3+BC's updates alternate."""
    pair = [{name: column.clone() for name, column in batches[0].items()} for _ in range(2)]
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(4):
            update(pair[0])
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side_stream):
        for batch in pair:
            update(batch)
    num_calls = 0

    def launch(batch: Batch) -> None:
        nonlocal num_calls
        torch._foreach_copy_(list(pair[num_calls % 2].values()), list(batch.values()))
        num_calls += 1
        if num_calls % 2 == 0:
            graph.replay()

    return launch


UPDATE_FACTORIES = {
    "BC": bc,
    "IQL": iql,
    "TD3BC": td3bc,
    "DQN": dqn,
    "DiscreteCQL": discrete_cql,
    "CQL": cql,
    "SAC": sac,
    "EDAC": edac,
}


class _TwinCritics(nn.Module):
    """Two critics of observations and actions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (_mlp(OBSERVATIONS + ACTIONS, 1) for _ in range(2))

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.cat([obs, actions], -1)
        return self.first(pairs).squeeze(-1), self.second(pairs).squeeze(-1)


def _mlp(size_in: int, size_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size_in, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, size_out),
    )


def _adam(parameters: Iterable[Tensor], lr: float) -> torch.optim.Adam:
    parameters = list(parameters)
    return torch.optim.Adam(parameters, lr=lr, fused=True, capturable=parameters[0].is_cuda)


def _step(adam: torch.optim.Adam, loss: Tensor) -> None:
    loss.backward(inputs=adam.param_groups[0]["params"])
    adam.step()
    adam.zero_grad()


def _polyak_update(target: nn.Module, online: nn.Module) -> None:
    torch._foreach_lerp_(
        [*target.parameters()], [parameter.detach() for parameter in online.parameters()], TAU
    )


def _squared_error(values: tuple[Tensor, Tensor], td_target: Tensor) -> Tensor:
    return functional.mse_loss(values[0], td_target) + functional.mse_loss(values[1], td_target)


def _logp(inputs: Tensor, actions: Tensor) -> Tensor:
    mean, log_std = inputs.chunk(2, -1)
    standardised = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * standardised.square() - log_std).sum(-1) - 0.5 * ACTIONS * math.log(2.0 * math.pi)


def _sample_actions(inputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sample `count` actions within ±1 for each row, with their log-densities."""
    mean, log_std = inputs.chunk(2, -1)
    log_std = log_std.clamp(-20.0, 2.0)
    noise = torch.randn(count, *mean.shape, device=mean.device)
    u = mean + log_std.exp() * noise
    slopes = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
    return torch.tanh(u), (-0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi) - slopes).sum(-1)
