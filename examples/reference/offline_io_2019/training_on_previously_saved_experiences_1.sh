# Example: Training on previously saved experiences: writing
#
# Pages: 2019; block 1

# changed: PPO instead of PG, which does not exist here.
hindcast train \
    --run=PPO \
    --env=CartPole-v0 \
    --config='{"output": "/tmp/cartpole-out", "output_max_file_size": 5000000}' \
    --stop='{"timesteps_total": 100000}'
