"""PreLearner level: configuration

Pages: 2.40, 2026; block 34
"""

from text_prelearner_with_map_to_episodes import TextOfflinePreLearner, vocabulary

from hindcast import AlgorithmConfig

config = (
    AlgorithmConfig()
    .offline_data(
        # Provide your custom `OfflinePreLearner`.
        prelearner_class=TextOfflinePreLearner,
        # Provide special keyword arguments your `OfflinePreLearner` needs.
        prelearner_kwargs={
            "vocabulary": vocabulary,
        },
    )
)
