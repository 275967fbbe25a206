"""The stated works: what every contender is asked to do, and what a step of it costs."""

from typing import NamedTuple

from parallel_ppo.settings.env_names import PROCGEN_GAMES


class Work(NamedTuple):
    name: str
    env: str
    policy: str
    num_envs: int
    num_steps: int
    epochs: int
    batch_size: int
    side: int = 64  # of the images, where there are any

    @property
    def steps(self) -> int:
        """Of one iteration."""
        return self.num_envs * self.num_steps

    @property
    def description(self) -> str:
        options = "" if "-v" in self.env else ", easy, all levels"
        return (
            f"{self.env}{options}, {self.policy}, {self.num_envs} environments x {self.num_steps} steps, "
            f"{self.epochs} epochs of minibatches of {self.batch_size}, float32"
        )


WORKS = {
    "W1": Work("W1", "starpilot", "impala", 32, 128, 4, 1024),
    "W2": Work("W2", "starpilot", "nature", 32, 128, 4, 1024),
    "W3": Work("W3", "CartPole-v1", "mlp", 8, 128, 4, 1024),
    "W5": Work("W5", "benchmarks.peers.frames:Frames-v0", "nature", 32, 128, 4, 1024, side=84),
    "W6": Work("W6", "HalfCheetah-v5", "mlp", 8, 256, 10, 128),
    "W7": Work("W7", "LunarLander-v3", "mlp", 16, 256, 6, 256),
}
COLLECTION = Work("W4", ", ".join(PROCGEN_GAMES), "impala", 32, 128, 0, 1024)


def _mlps(inputs: int, outputs: int) -> list[tuple[int, int, int]]:
    """The policy's and the value's."""
    return [layer for last in (outputs, 1) for layer in ((1, inputs, 64), (1, 64, 64), (1, 64, last))]


# (output positions, inputs of one output, output channels); a multiplication and an addition each
LAYERS = {
    "impala": [
        (64 * 64, 3 * 9, 16), *[(32 * 32, 16 * 9, 16)] * 4,
        (32 * 32, 16 * 9, 32), *[(16 * 16, 32 * 9, 32)] * 4,
        (16 * 16, 32 * 9, 32), *[(8 * 8, 32 * 9, 32)] * 4,
        (1, 2048, 256), (1, 256, 16),
    ],
    "nature": [(15 * 15, 3 * 64, 32), (6 * 6, 32 * 16, 64), (4 * 4, 64 * 9, 64),
               (1, 1024, 512), (1, 512, 16)],
    "nature84": [(20 * 20, 4 * 64, 32), (9 * 9, 32 * 16, 64), (7 * 7, 64 * 9, 64),
                 (1, 3136, 512), (1, 512, 7)],
    "CartPole-v1": _mlps(4, 2), "HalfCheetah-v5": _mlps(17, 6), "LunarLander-v3": _mlps(8, 4),
}  # fmt: skip


def mega_flops(work: Work) -> float:
    """Of one step: one inference, and in each epoch a forward pass and a backward pass of twice its cost."""
    network = work.policy if work.side == 64 else f"{work.policy}{work.side}"
    if work.policy == "mlp":
        network = work.env
    forward = sum(2 * positions * inputs * outputs for positions, inputs, outputs in LAYERS[network])
    return forward * (1 + 3 * work.epochs) / 1e6
