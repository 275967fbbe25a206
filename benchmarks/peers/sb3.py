"""Stable-Baselines3's PPO at the stated work; `--variant channels_last` only casts the network's input."""

from typing import Any

import gymnasium
import numpy as np
import stated
import torch
from networks import Impala, Nature
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv


class Extractor(BaseFeaturesExtractor):
    def __init__(self, observation_space: gymnasium.Space, network: str, channels_last: bool) -> None:
        kind = {"impala": Impala, "nature": Nature}[network]
        super().__init__(observation_space, kind.num_features)
        self.network = kind(channels_last)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.network(observation)


class ProcgenVec(VecEnv):
    """Procgen's native batch, as it is."""

    def __init__(self, game: str, num: int) -> None:
        self.native = stated.native_procgen(game, num, 1)
        super().__init__(
            num, gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8), gymnasium.spaces.Discrete(15)
        )

    def reset(self) -> np.ndarray:
        return self.native.observe()[1]["rgb"]

    def step_async(self, actions: np.ndarray) -> None:
        self.native.act(actions.astype(np.int32))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict]]:
        reward, observation, first = self.native.observe()
        return observation["rgb"], reward, first, [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        self.native.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **named: Any) -> list:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Ticker(BaseCallback):
    """A rollout's start ends the iteration before it."""

    def __init__(self, clock: stated.Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_rollout_start(self) -> None:
        self.clock.tick()

    def _on_training_end(self) -> None:
        self.clock.tick()

    def _on_step(self) -> bool:
        return True


def main() -> None:
    work = stated.parse("Stable-Baselines3's PPO at the stated work.")
    clock = stated.Clock(work.num_envs * work.num_steps)
    policy_options: dict[str, Any] = {"optimizer_kwargs": {"eps": stated.ADAM_EPSILON}}
    network, is_procgen = work.policy, "-v" not in work.env
    env = ProcgenVec(work.env, work.num_envs) if is_procgen else make_vec_env(work.env, work.num_envs)
    if work.policy == "mlp":
        policy = "MlpPolicy"
        network = work.env if work.env in stated.PARAMETERS else "mlp"
    else:
        policy, network = "CnnPolicy", work.policy if is_procgen else f"{work.policy}84"
        # Heads straight on the features, for other extractors than its own too.
        policy_options["net_arch"] = []
        if work.policy == "impala" or work.variant == "channels_last":  # the Nature CNN is its own
            options = {"network": work.policy, "channels_last": work.variant == "channels_last"}
            policy_options |= {"features_extractor_class": Extractor, "features_extractor_kwargs": options}
    model = PPO(
        policy, env, learning_rate=stated.LEARNING_RATE, n_steps=work.num_steps, batch_size=work.batch_size,
        n_epochs=work.epochs, gamma=stated.GAMMA, gae_lambda=stated.GAE_LAMBDA, clip_range=stated.CLIP,
        clip_range_vf=stated.CLIP, ent_coef=stated.ENTROPY,
        vf_coef=stated.VALUE, max_grad_norm=stated.GRADIENT_NORM, policy_kwargs=policy_options,
        device="cpu", seed=1,
    )  # fmt: skip
    stated.check_network(network, model.policy)
    model.learn(work.iterations * clock.steps, callback=Ticker(clock))


if __name__ == "__main__":
    main()
