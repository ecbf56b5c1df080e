# Mixing simulation and offline data
#
# Pages: 2019; block 5

# changed: a recording instead of hdfs:/archive/cartpole (spelled hdfs://host:port/archive/cartpole here); a stop; a name,
# because the page's runs are all named after their algorithm.
hindcast train \
    --run=DQN \
    --env=CartPole-v0 \
    --config='{
        "input": {
            "/tmp/cartpole-out": 0.4,
            "/tmp/docs_rllib_offline_recording": 0.3,
            "sampler": 0.3,
        },
        "exploration_final_eps": 0,
        "exploration_fraction": 0}' \
    --stop='{"timesteps_total": 20000}' \
    --experiment-name=dqn-mixed
