"""sb3-contrib's RecurrentPPO at the stated work: our trunk, one LSTM for policy and value, and the heads."""

from typing import Any

import gymnasium
import stated
import torch
from sb3 import ProcgenVec, Ticker
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

UNITS, SIZE = 64, 256


class Layers(BaseFeaturesExtractor):
    """The stated MLP, before the cell as ours is."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, UNITS)
        (num_inputs,) = observation_space.shape
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, UNITS), nn.Tanh(), nn.Linear(UNITS, UNITS), nn.Tanh()
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layers(observation)


def main() -> None:
    work = stated.parse("sb3-contrib's RecurrentPPO at the stated work.")
    clock = stated.Clock(work.num_envs * work.num_steps)
    is_procgen, is_vector = "-v" not in work.env, work.policy == "mlp"
    env = ProcgenVec(work.env, work.num_envs) if is_procgen else make_vec_env(work.env, work.num_envs)
    options: dict[str, Any] = {
        "optimizer_kwargs": {"eps": stated.ADAM_EPSILON}, "net_arch": [], "lstm_hidden_size": SIZE,
        "shared_lstm": True, "enable_critic_lstm": False,
    }  # fmt: skip
    if is_vector:
        options |= {"features_extractor_class": Layers}
    model = RecurrentPPO(
        "MlpLstmPolicy" if is_vector else "CnnLstmPolicy", env, learning_rate=stated.LEARNING_RATE,
        n_steps=work.num_steps, batch_size=work.batch_size, n_epochs=work.epochs, gamma=stated.GAMMA,
        gae_lambda=stated.GAE_LAMBDA, clip_range=stated.CLIP, clip_range_vf=stated.CLIP,
        ent_coef=stated.ENTROPY, vf_coef=stated.VALUE, max_grad_norm=stated.GRADIENT_NORM,
        policy_kwargs=options, device="cpu", seed=1,
    )  # fmt: skip
    stated.check_network(f"lstm {work.env}", model.policy)
    model.learn(work.iterations * clock.steps, callback=Ticker(clock))


if __name__ == "__main__":
    main()
