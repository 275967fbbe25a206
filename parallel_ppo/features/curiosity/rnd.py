"""Random network distillation: an observation is new if a predictor cannot foresee the output
of a fixed random network.

(Burda et al. 2018.) B samples, K outputs, T steps, n envs of a slice.
"""

import torch
from torch import Tensor, nn

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.curiosity.encoders import Encoder, draw, layers
from parallel_ppo.features.curiosity.model import CollectedColumns, Losses, Transitions
from parallel_ppo.features.curiosity.whitening import Whitening
from parallel_ppo.kernels.native import row_sums
from parallel_ppo.policies.parameters import bind, num_flat
from parallel_ppo.settings.schema import Settings


def num_outputs(settings: Settings, spec: EnvSpec) -> int:
    return settings.curiosity.num_outputs or (512 if spec.image_shapes else 64)


class Distillation(nn.Module):
    """An encoder and linear layers behind it."""

    def __init__(self, settings: Settings, spec: EnvSpec, *, num_more: int) -> None:
        super().__init__()
        self.encoder = Encoder(settings, spec, last_frame=True)
        width = self.encoder.num_features
        sizes = *[width] * num_more, num_outputs(settings, spec)
        self.head = layers(width, *sizes, native=settings.training.kernels == "native")

    def forward(self, parts: list[Tensor]) -> Tensor:
        return self.head(self.encoder(parts))


def make_target(settings: Settings, spec: EnvSpec) -> Distillation:
    """The fixed network: never learned, and drawn again from the seed wherever it is needed."""
    target = Distillation(settings, spec, num_more=0)
    flat = torch.zeros(num_flat(target))
    draw(target, flat, settings.training.seed, "curiosity target")
    bind(target, flat)
    target.requires_grad_(False)
    target.encoder.begin_inference()
    return target


class Rnd(nn.Module):
    LOSSES = ("predictor",)

    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        super().__init__()
        self.predictor = Distillation(settings, spec, num_more=2)
        self.make_target = lambda: make_target(settings, spec)
        self.targets: list[Distillation] = []  # in a list, for it is none of the learned modules

    @property
    def target(self) -> Distillation:
        if not self.targets:
            self.targets.append(self.make_target())
        return self.targets[0]

    def begin_inference(self) -> None:
        self.predictor.encoder.begin_inference()

    def begin_step(self, step: tuple[int, ...]) -> None:
        self.predictor.encoder.begin_step(step)

    @torch.inference_mode()
    def reward(self, whiten: Whitening, columns: CollectedColumns) -> None:
        """A step earns what its next observation is worth, whichever episode that belongs to."""
        num_steps, num_envs = columns.intrinsic_reward.shape
        for steps in columns.pieces(num_steps):
            parts = whiten(columns.rows(slice(steps.start + 1, steps.stop + 1)))
            target = self.target(parts)
            error = squared_error(self.predictor(parts), target)
            columns.intrinsic_reward[steps] = error.numpy().reshape(-1, num_envs)
            columns.target_features[steps] = target.numpy().reshape(-1, num_envs, target.shape[1])

    def losses(self, whiten: Whitening, batch: Transitions) -> Losses:
        found = self.predictor(whiten(batch.after("observation")))
        loss = squared_error(found, batch.here("target_features")).sum()
        return Losses(loss, predictor=loss)


def squared_error(found: Tensor, target: Tensor) -> Tensor:
    """[B]: mean over the outputs."""
    return row_sums((found - target).square()) / found.shape[1]
