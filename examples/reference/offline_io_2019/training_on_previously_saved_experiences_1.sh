# Example: Training on previously saved experiences: writing
#
# Pages: 2019; block 1

# changed: PPO instead of PG, which does not exist here. The trained expert is recorded: evaluation_duration says how much.
hindcast train \
    --run=PPO \
    --env=CartPole-v0 \
    --config='{"output": "/tmp/cartpole-out", "output_max_file_size": 5000000, "evaluation_duration": 100}' \
    --stop='{"timesteps_total": 100000}'
