# Example: Training on previously saved experiences: training
#
# Pages: 2019; block 3

# changed: an end, which every resource has; without it RLlib goes on until it is interrupted.
hindcast train \
    --run=DQN \
    --env=CartPole-v0 \
    --config='{
        "input": "/tmp/cartpole-out",
        "exploration_final_eps": 0,
        "exploration_fraction": 0}' \
    --stop='{"timesteps_total": 20000}'
