"""RLlib's second example: record 500 episodes of the expert, at most 25 in a file.

    python examples/02_record_expert.py [FOLDER]

Only the import lines differ from RLlib, and the lines marked `corrected`.
"""

import sys
from pathlib import Path

from hindcast import COMPONENT_RL_MODULE, DefaultModelConfig, PPOConfig

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/hindcast_examples")

# What the first example left behind.
best_checkpoint = (folder / "best_checkpoint").read_text()

# Where the recording goes.
data_path = str(folder / "docs_rllib_offline_recording")

config = (
    PPOConfig()
    # The environment to play in.
    .environment(
        env="CartPole-v1",
    )
    # Whole episodes (Hindcast always records them whole).
    .env_runners(
        batch_mode="complete_episodes",
    )
    # Five runners, or as many as the machine has processors; each evaluation plays 50 episodes.
    .evaluation(
        evaluation_num_env_runners=5,
        evaluation_duration=50,
        evaluation_duration_unit="episodes",
    )
    # The model that the expert was trained with; another one is refused when its weights are restored.
    .rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=[32],
            fcnet_activation="linear",
            vf_share_layers=True,
        ),
    )
    # Where to and how: one row per episode, no more than 25 of them in a file.
    .offline_data(
        output=data_path,
        output_write_episodes=True,
        output_max_rows_per_file=25,
    )
)

algo = config.build()

# corrected: the same call, but it restores. In RLlib it finds no module under this name, says nothing,
# and an untrained policy is recorded; here a path without what is asked for is an error.
algo.restore_from_path(
    best_checkpoint,
    # The policy alone.
    component=COMPONENT_RL_MODULE,
)

# Each evaluation records its 50 episodes.
for i in range(10):
    print(f"Iteration {i + 1}")
    eval_results = algo.evaluate()
    print(eval_results)

# Completes the dataset. Run again, the script finds its recording and plays nothing twice.
algo.stop()
