"""Never give up: new within the episode, times new in the whole life. (Badia et al. 2020.)

The episodic part is `episodic.py`, on an embedding that learns from inverse dynamics; the life-long part is
RND's error, in deviations from its running mean. T steps, n envs of a slice, D numbers of an embedding.
"""

import numpy as np
import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.curiosity.encoders import Encoder, layers
from parallel_ppo.features.curiosity.episodic import Memories, episodic_rewards
from parallel_ppo.features.curiosity.inverse import both_features, features_of, inverse_loss
from parallel_ppo.features.curiosity.model import CollectedColumns, Losses, Transitions
from parallel_ppo.features.curiosity.rnd import Rnd
from parallel_ppo.features.curiosity.whitening import Whitening
from parallel_ppo.policies import heads
from parallel_ppo.settings.schema import Settings

HIDDEN = 128


class Embedding(nn.Module):
    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        super().__init__()
        self.encoder = Encoder(settings, spec)
        native = settings.training.kernels == "native"
        self.head = layers(self.encoder.num_features, settings.curiosity.ngu_embedding, native=native)

    def forward(self, parts: list[Tensor]) -> Tensor:
        return self.head(self.encoder(parts))


class Ngu(nn.Module):
    LOSSES = ("predictor", "inverse")

    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        super().__init__()
        self.settings, self.action = settings.curiosity, spec.action
        self.rnd = Rnd(settings, spec)
        self.embedding = Embedding(settings, spec)
        self.inverse = layers(
            2 * self.settings.ngu_embedding, HIDDEN, heads.num_outputs(spec.action),
            native=settings.training.kernels == "native",
        )  # fmt: skip

    def begin_inference(self) -> None:
        self.rnd.begin_inference()
        self.embedding.encoder.begin_inference()

    def begin_step(self, step: tuple[int, ...]) -> None:
        self.rnd.begin_step(step)
        self.embedding.encoder.begin_step(step)

    @torch.inference_mode()
    def reward(self, whiten: Whitening, columns: CollectedColumns) -> None:
        self.rnd.reward(whiten, columns)
        columns.novelty[...] = columns.intrinsic_reward
        embedding = features_of(self.embedding, whiten, columns)
        memories = Memories(*(columns.carried[name] for name in Memories._fields))
        reward = episodic_rewards(memories, embedding, columns.episode_start, self.settings)
        columns.intrinsic_reward[...] = reward * self.modulation(columns.novelty, *columns.novelty_scale)
        columns.episodic_size[...] = memories.episodic_used / self.settings.ngu_embedding

    def modulation(self, error: np.ndarray, mean: float, scale: float) -> np.ndarray:
        """1 for what is as well known as most, more for what is not; `scale` is 1 / deviation."""
        return np.clip(1 + (error - mean) * scale, 1, self.settings.ngu_max_modulation)

    def losses(self, whiten: Whitening, batch: Transitions) -> Losses:
        predictor = self.rnd.losses(whiten, batch).total
        before, after = both_features(
            self.embedding, whiten, batch.here("observation"), batch.after("observation")
        )
        named = self.inverse(torch.cat((before, after), 1))
        inverse = (inverse_loss(self.action, named, batch.here("action")) * batch.continues).sum()
        return Losses(predictor + inverse, predictor=predictor, inverse=inverse)
