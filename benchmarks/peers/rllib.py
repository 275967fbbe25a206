"""RLlib's PPO (its new API stack) at the stated work, in one process: its learner may use all cores."""

import os
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import stated
import torch
from networks import Impala, Nature
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.tune.registry import register_env


class ImageModule(TorchRLModule, ValueFunctionAPI):
    """One trunk, two heads; features are handed on, so that values cost no second pass in training."""

    def setup(self) -> None:
        self.trunk = {"impala": Impala, "nature": Nature}[self.model_config["network"]]()
        self.logits = torch.nn.Linear(self.trunk.num_features, self.action_space.n)
        self.value = torch.nn.Linear(self.trunk.num_features, 1)

    def _features(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.trunk(batch[Columns.OBS].permute(0, 3, 1, 2).float() / 255)

    def _forward(self, batch: dict[str, Any], **options: Any) -> dict[str, torch.Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self.logits(self._features(batch))}

    def _forward_train(self, batch: dict[str, Any], **options: Any) -> dict[str, torch.Tensor]:
        features = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.logits(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: torch.Tensor | None = None) -> torch.Tensor:
        return self.value(self._features(batch) if embeddings is None else embeddings).squeeze(-1)


def main() -> None:
    work = stated.parse("RLlib's PPO at the stated work.")
    clock = stated.Clock(work.num_envs * work.num_steps)
    register_env(
        "benchmark", lambda config: stated.make_single(work.env, 1 + getattr(config, "vector_index", 0))
    )
    config = (
        PPOConfig()
        .environment("benchmark")
        .framework("torch")
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=work.num_envs, rollout_fragment_length=work.num_steps
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            lr=stated.LEARNING_RATE, gamma=stated.GAMMA, lambda_=stated.GAE_LAMBDA, clip_param=stated.CLIP,
            vf_clip_param=10.0, entropy_coeff=stated.ENTROPY,
            vf_loss_coeff=stated.VALUE, grad_clip=stated.GRADIENT_NORM, grad_clip_by="global_norm",
            use_kl_loss=False,
            train_batch_size_per_learner=clock.steps, minibatch_size=work.batch_size, num_epochs=work.epochs,
        )
        .debugging(seed=1, log_level="ERROR")
    )  # fmt: skip
    if work.policy == "mlp":
        config.rl_module(
            model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}
        )
    else:
        config.rl_module(
            rl_module_spec=RLModuleSpec(module_class=ImageModule, model_config={"network": work.policy})
        )
    algorithm = config.build_algo()
    torch.set_num_threads(work.cores)
    stated.check_network(work.policy, algorithm.learner_group._learner.module["default_policy"])
    clock.start()
    for _ in range(work.iterations):
        algorithm.train()
        clock.tick()
    algorithm.stop()


if __name__ == "__main__":
    main()
