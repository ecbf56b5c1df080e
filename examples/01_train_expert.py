"""RLlib's first example: train an expert with PPO until its return is 450, and keep its checkpoint.

    python examples/01_train_expert.py [FOLDER]

Only the import lines differ from RLlib, and the lines marked `corrected`.
"""

import sys
from pathlib import Path

from hindcast import (
    ENV_RUNNER_RESULTS,
    EPISODE_RETURN_MEAN,
    EVALUATION_RESULTS,
    DefaultModelConfig,
    PPOConfig,
    tune,
)

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/hindcast_examples")

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .training(
        lr=0.0003,
        # Six passes over each batch.
        num_epochs=6,
        # The policy's loss counts most.
        vf_loss_coeff=0.01,
        # corrected: said here, since Hindcast's defaults are the paper's and these two RLlib's.
        lambda_=1.0,
        vf_clip_param=10.0,
    )
    .rl_module(
        model_config=DefaultModelConfig(
            fcnet_hiddens=[32],
            fcnet_activation="linear",
            # One encoder for policy and values.
            vf_share_layers=True,
        ),
    )
    # corrected: RLlib stops on an evaluation that it never asks for, and so trains for ever.
    # The expert is evaluated as it will be recorded: sampling its actions.
    .evaluation(evaluation_interval=1, evaluation_duration=20, evaluation_config={"explore": True})
)

# The figure that ends the training.
metric = f"{EVALUATION_RESULTS}/{ENV_RUNNER_RESULTS}/{EPISODE_RETURN_MEAN}"

tuner = tune.Tuner(
    "PPO",
    param_space=config,
    # corrected: Tune has its own RunConfig and CheckpointConfig; those of `train` refuse these options by now.
    run_config=tune.RunConfig(
        stop={
            metric: 450.0,
        },
        name="docs_rllib_offline_pretrain_ppo",
        storage_path=str(folder.resolve() / "ray_results"),
        verbose=2,
        checkpoint_config=tune.CheckpointConfig(
            checkpoint_frequency=1,
            checkpoint_at_end=True,
        ),
    ),
)
results = tuner.fit()

# The expert, for the next example.
best_checkpoint = results.get_best_result(metric=metric, mode="max").checkpoint.path
(folder / "best_checkpoint").write_text(best_checkpoint)
print(best_checkpoint)
