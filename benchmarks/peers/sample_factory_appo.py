"""Sample Factory's APPO at the stated work; `--variant serial` is its one-process mode."""

import sys
import tempfile
from typing import Any

import gymnasium
import stated
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner


def create(name: str, configuration: Any = None, env_config: Any = None, render_mode: Any = None) -> Any:
    return stated.make_single(name, 1 + (env_config.env_id if env_config else 0), channels_first=True)


class Ticker(AlgoObserver):
    def __init__(self, clock: stated.Clock) -> None:
        self.clock = clock

    def on_start(self, runner: Runner) -> None:
        self.clock.start()

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        self.clock.tick()


def network_of(env: str, configuration: Any) -> Any:
    """A network as its learner will make it, to be counted."""
    single = stated.make_single(env, 1, channels_first=True)
    spaces = gymnasium.spaces.Dict({"obs": single.observation_space}), single.action_space
    return create_actor_critic(configuration, *spaces)


def options(work: Any, steps: int, directory: str) -> list[str]:
    network = {
        "impala": [
            "--encoder_conv_architecture=resnet_impala",
            "--encoder_conv_mlp_layers",
            "256",
            "--nonlinearity=relu",
        ],
        "nature": [
            "--encoder_conv_architecture=convnet_atari",
            "--encoder_conv_mlp_layers",
            "512",
            "--nonlinearity=relu",
        ],
        "mlp": [
            "--encoder_mlp_layers",
            "64",
            "64",
            "--actor_critic_share_weights=False",
            "--nonlinearity=tanh",
        ],
    }[work.policy]
    workers = 1 if work.variant == "serial" else work.cores
    return [
        f"--env={work.env}", "--experiment=benchmark", f"--train_dir={directory}", "--device=cpu", "--seed=1",
        f"--serial_mode={work.variant == 'serial'}", f"--async_rl={work.variant != 'serial'}",
        f"--num_workers={workers}", f"--num_envs_per_worker={work.num_envs // workers}",
        f"--worker_num_splits={1 if work.variant == 'serial' else 2}", "--num_policies=1",
        f"--rollout={work.num_steps}", f"--batch_size={work.batch_size}",
        f"--num_batches_per_epoch={steps // work.batch_size}", f"--num_epochs={work.epochs}",
        f"--train_for_env_steps={steps * work.iterations}", "--use_rnn=False", "--recurrence=1",
        f"--learning_rate={stated.LEARNING_RATE}", f"--gamma={stated.GAMMA}",
        f"--gae_lambda={stated.GAE_LAMBDA}",
        f"--ppo_clip_ratio={stated.CLIP}", f"--ppo_clip_value={stated.CLIP}",
        f"--exploration_loss_coeff={stated.ENTROPY}",
        f"--value_loss_coeff={stated.VALUE}", f"--max_grad_norm={stated.GRADIENT_NORM}",
        f"--adam_eps={stated.ADAM_EPSILON}",
        "--normalize_input=False", "--obs_subtract_mean=0",
        f"--obs_scale={1 if work.policy == 'mlp' else 255}",
        "--save_every_sec=100000", "--with_wandb=False", *network,
    ]  # fmt: skip


def main() -> None:
    work = stated.parse("Sample Factory's APPO at the stated work.")
    clock = stated.Clock(work.num_envs * work.num_steps)
    register_env(work.env, create)
    with tempfile.TemporaryDirectory() as directory:
        arguments = options(work, clock.steps, directory)
        sys.argv = sys.argv[:1]
        parser, _ = parse_sf_args(argv=arguments)
        configuration = parse_full_cfg(parser, argv=arguments)
        stated.check_network(work.policy, network_of(work.env, configuration))
        _, runner = make_runner(configuration)
        runner.register_observer(Ticker(clock))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
