"""Pipeline level: images, the example

Pages: 2.40, 2026; block 37
"""

import gymnasium as gym
import numpy as np
from pathlib import Path
from PIL import Image

from image_offline_data import ImageOfflineData
from image_offline_prelearner import ImageOfflinePreLearner

from hindcast import (
    BCCatalog,
    BCConfig,
    DefaultBCTorchRLModule as BCTorchRLModule,
    DefaultModelConfig,
    MultiRLModuleSpec,
    RLModuleSpec,
)

# changed: three images on this machine, in place of a public bucket's.
Path("images").mkdir(exist_ok=True)
for number in range(3):
    pixels = np.full((32, 32, 3), 80 * number, np.uint8)
    Image.fromarray(pixels).save(f"images/{number}.jpg")

# Create an Algorithm configuration.
# TODO: Make this an actually running/learning example with RLunplugged
# data from S3 and add this to the CI.
config = (
    BCConfig()
    .environment(
        action_space=gym.spaces.Discrete(2),
        observation_space=gym.spaces.Box(0, 255, (32, 32, 3), np.float32),
    )
    .offline_data(
        # changed: the path of those images.
        input_=["images"],
        prelearner_class=ImageOfflinePreLearner,
    )
)

# Specify an `RLModule` and wrap it with a `MultiRLModuleSpec`. Note,
# on `Learner`` side any `RLModule` is an `MultiRLModule`.
module_spec = MultiRLModuleSpec(
    rl_module_specs={
        "default_policy": RLModuleSpec(
            model_config=DefaultModelConfig(
                conv_filters=[[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]],
                conv_activation="relu",
            ),
            inference_only=False,
            module_class=BCTorchRLModule,
            catalog_class=BCCatalog,
            action_space=gym.spaces.Discrete(2),
            observation_space=gym.spaces.Box(0, 255, (32, 32, 3), np.float32),
        ),
    },
)

# Construct your `OfflineData` class instance.
offline_data = ImageOfflineData(config)

# Check, how the data is transformed. Note, the
# example dataset has only 3 such images.
batch = offline_data.data.take_batch(3)

# Construct your `OfflinePreLearner`.
offline_prelearner = ImageOfflinePreLearner(
    config=config,
    learner=None,
    spaces=(
        config.observation_space,
        config.action_space,
    ),
    module_spec=module_spec,
)

# Transform the raw data to `MultiAgentBatch` data.
batch = offline_prelearner(batch)

# Show the transformed batch.
print(f"Batch: {batch}")
