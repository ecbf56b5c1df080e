"""Define a primer LearnerConnector pipeline

Pages: 2.40, 2026; block 30
"""

from record_expert_data_to_local_disk import data_path

from hindcast import AlgorithmConfig, BCConfig
from hindcast.rllib.connectors.connector_v2 import ConnectorV2


# changed: a connector; the page only gives its name.
class CustomLearnerConnector(ConnectorV2):
    def __init__(self, parameter_1, parameter_2):
        super().__init__()
        self.parameter_1 = parameter_1
        self.parameter_2 = parameter_2

    def __call__(self, *, rl_module, batch, episodes, shared_data=None, metrics=None, **kwargs):
        for episode in episodes:
            episode.set_rewards(new_data=episode.get_rewards() * self.parameter_1 / self.parameter_2)
        return batch


def _make_learner_connector(input_observation_space, input_action_space):
    # Create the learner connector.
    return CustomLearnerConnector(
        parameter_1=0.3,
        parameter_2=100,
    )

config = (
    AlgorithmConfig()
    .training(
        # Add the connector pipeline as the starting point for
        # the learner connector pipeline.
        learner_connector=_make_learner_connector,
    )
)

# changed: one iteration, to run it.
trained = BCConfig.from_dict(config.to_dict()).environment("CartPole-v1")
with trained.offline_data(input_=data_path, dataset_num_iters_per_learner=5).build() as algo:
    algo.train()
