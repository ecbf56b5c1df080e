"""Behaviour cloning with an LSTM and dropout as a user would write it: the module, and the algorithm that trains it."""

from torch import nn

from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Algorithm, AlgorithmOptions, Losses
from hindcast.learn.batches import batch_mean, fill_padding
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.encoders import Encoder
from hindcast.models.recurrent import RecurrentLayer, as_leaves, extract_state
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs


class LSTMBCOptions(AlgorithmOptions):
    """L = -E[log π(a|s, h)], over the steps that the loss mask selects."""

    lr: Schedule = 1e-2


class LSTMPolicy(RLModule):
    """An encoder, an LSTM, dropout and a head."""

    def setup(self):
        self.encoder = Encoder(self.observation_space, self.model_config)
        self.memory = RecurrentLayer("lstm", self.encoder.output_size, self.model_config.cell_size)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(self.memory.output_size, self.action_head.inputs_size)

    def get_initial_state(self):
        return self.memory.initial_state()

    def _forward(self, batch):
        features, state = self.memory(self.encoder(batch), extract_state(Columns.STATE_IN, batch))
        outputs = {Columns.ACTION_DIST_INPUTS: self.head(self.dropout(features))}
        return outputs | as_leaves(Columns.STATE_OUT, state)


class LSTMBC(Algorithm):
    """See `LSTMBCOptions`."""

    Options = LSTMBCOptions
    can_train_recurrent = True
    options: LSTMBCOptions

    def needs(self):
        return Needs(frozenset({"obs", "actions"}))

    def networks(self, inputs):
        return nn.ModuleDict(
            {"policy": LSTMPolicy(inputs.observation_space, inputs.action_space, inputs.model)}
        )

    def optimisers(self, nets):
        return {"policy": OptimiserSpec(list(nets.parameters()), self.options.lr)}

    def losses(self, nets, batch, step):
        policy, batch = nets["policy"], fill_padding(batch)
        distribution = policy.distribution(policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
        loss = -batch_mean(distribution.logp(batch[Columns.ACTIONS]), batch)
        return Losses({"policy": loss})
