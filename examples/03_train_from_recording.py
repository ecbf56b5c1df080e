"""RLlib's third example: clone the expert from its recording, by behaviour cloning.

    python examples/03_train_from_recording.py [FOLDER]

Only the import lines differ from RLlib, and the lines marked `corrected`.
"""

import sys
from pathlib import Path

from hindcast import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS, BCConfig, tune

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/hindcast_examples")

# What the second example recorded.
data_path = str(folder.resolve() / "docs_rllib_offline_recording")

config = (
    BCConfig()
    .environment(
        # For the spaces, and to evaluate in.
        env="CartPole-v1",
    )
    .learners(
        # One learner, in the trial's process.
        num_learners=0,
    )
    .training(
        # Timesteps of a batch.
        train_batch_size_per_learner=1024,
    )
    .offline_data(
        # The recording.
        input_=[data_path],
        # Its layout; Hindcast finds out by itself.
        input_read_episodes=True,
        # Has no bearing on the batches, which go through all timesteps once per epoch.
        input_read_batch_size=512,
        # Two data workers, one CPU each.
        map_batches_kwargs={
            "concurrency": 2,
            "num_cpus": 1,
        },
        # Two batches ahead. Timesteps are shuffled in windows, without a buffer.
        iter_batches_kwargs={
            "prefetch_batches": 2,
            "local_shuffle_buffer_size": None,
        },
        # One update per iteration.
        dataset_num_iters_per_learner=1,
    )
    .evaluation(
        # After every third iteration,
        evaluation_interval=3,
        # in a process of its own,
        evaluation_num_env_runners=1,
        # five episodes,
        evaluation_duration=5,
        # while training goes on.
        evaluation_parallel_to_training=True,
    )
)

# The figure that ends the training.
metric = f"{EVALUATION_RESULTS}/{ENV_RUNNER_RESULTS}/{EPISODE_RETURN_MEAN}"

tuner = tune.Tuner(
    "BC",
    param_space=config,
    # corrected: Tune has its own RunConfig and CheckpointConfig; those of `train` refuse these options by now.
    run_config=tune.RunConfig(
        name="docs_rllib_offline_bc",
        storage_path=str(folder.resolve() / "ray_results"),
        # As good as the expert.
        stop={metric: 450.0},
        checkpoint_config=tune.CheckpointConfig(
            # At the end only.
            checkpoint_frequency=0,
            checkpoint_at_end=True,
        ),
        verbose=2,
    ),
)
analysis = tuner.fit()
print(analysis.get_best_result(metric=metric, mode="max").checkpoint.path)
