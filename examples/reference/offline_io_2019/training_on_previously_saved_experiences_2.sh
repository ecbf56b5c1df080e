# Example: Training on previously saved experiences: training
#
# Pages: 2019; block 3

# changed: a stop, which every resource needs; without one RLlib runs until it is interrupted.
hindcast train \
    --run=DQN \
    --env=CartPole-v0 \
    --config='{
        "input": "/tmp/cartpole-out",
        "exploration_final_eps": 0,
        "exploration_fraction": 0}' \
    --stop='{"timesteps_total": 20000}'
