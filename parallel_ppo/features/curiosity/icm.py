"""The intrinsic curiosity module: what a model of the consequences of actions fails to foresee is new.

(Pathak et al. 2017.) The features learn from the inverse model alone: a forward model that could move them
would make everything alike. Transitions across an episode's end are excluded. B samples, F features.
"""

import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.curiosity.encoders import Encoder, layers
from parallel_ppo.features.curiosity.inverse import (
    HIDDEN,
    both_features,
    encoded_action,
    features_of,
    inverse_loss,
)
from parallel_ppo.features.curiosity.model import CollectedColumns, Losses, Transitions
from parallel_ppo.features.curiosity.whitening import Whitening
from parallel_ppo.kernels.native import row_sums
from parallel_ppo.policies import heads
from parallel_ppo.settings.schema import Settings


class Icm(nn.Module):
    LOSSES = ("inverse", "forward")

    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        super().__init__()
        self.settings, self.action = settings.curiosity, spec.action
        self.encoder = Encoder(settings, spec)
        width, num_outputs = self.encoder.num_features, heads.num_outputs(spec.action)
        native = settings.training.kernels == "native"
        self.inverse = layers(2 * width, HIDDEN, num_outputs, native=native)
        self.foresee = layers(width + num_outputs, HIDDEN, width, native=native)

    def begin_inference(self) -> None:
        self.encoder.begin_inference()

    def begin_step(self, step: tuple[int, ...]) -> None:
        self.encoder.begin_step(step)

    def forward_error(self, before: Tensor, after: Tensor, action: Tensor) -> Tensor:
        """[B]: half the squared distance between the features foreseen and found."""
        foreseen = self.foresee(torch.cat((before, encoded_action(self.action, action)), 1))
        return 0.5 * row_sums((foreseen - after).square())

    @torch.inference_mode()
    def reward(self, whiten: Whitening, columns: CollectedColumns) -> None:
        features = features_of(self.encoder, whiten, columns)
        width = features.shape[2]
        for steps in columns.pieces(len(columns.action)):
            before, after = features[steps], features[steps.start + 1 : steps.stop + 1]
            action = columns.action[steps].reshape(-1, columns.action.shape[2])
            arrays = before.reshape(-1, width), after.reshape(-1, width), action
            error = self.forward_error(*map(torch.from_numpy, arrays)).numpy()
            columns.intrinsic_reward[steps] = error.reshape(before.shape[:2])
        columns.intrinsic_reward[columns.episode_start[1:] == 1] = 0

    def losses(self, whiten: Whitening, batch: Transitions) -> Losses:
        chosen, action, continues = self.settings, batch.here("action"), batch.continues
        before, after = both_features(
            self.encoder, whiten, batch.here("observation"), batch.after("observation")
        )
        named = self.inverse(torch.cat((before, after), 1))
        inverse = (inverse_loss(self.action, named, action) * continues).sum()
        forward = (self.forward_error(before.detach(), after.detach(), action) * continues).sum()
        total = chosen.icm_inverse_weight * inverse + chosen.icm_forward_weight * forward
        return Losses(chosen.icm_loss_scale * total, inverse=inverse, forward=forward)
