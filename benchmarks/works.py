"""The stated works: exactly what every contender is asked to do."""

from typing import NamedTuple

LSTM = ("recurrence.kind=lstm",)


class Work(NamedTuple):
    env: str
    policy: str
    num_envs: int
    num_steps: int
    epochs: int
    batch_size: int
    iterations: int  # measured in a run: some ten seconds on a few cores
    settings: tuple[str, ...] = ()  # KEY=VALUE, which only this project knows

    @property
    def steps(self) -> int:
        """Of one iteration."""
        return self.num_envs * self.num_steps

    @property
    def description(self) -> str:
        more = [", easy, all levels"] if "-v" not in self.env else []
        more += [f", {setting}" for setting in self.settings]
        return (
            f"{self.env}{''.join(more)}, {self.policy}, {self.num_envs} environments x {self.num_steps} steps, "
            f"{self.epochs} epochs of minibatches of {self.batch_size}"
        )


WORKS = {
    "W1": Work("starpilot", "impala", 32, 128, 4, 1024, iterations=2),
    "W2": Work("starpilot", "nature", 32, 128, 4, 1024, iterations=4),
    "W2R": Work("starpilot", "nature", 32, 128, 4, 1024, iterations=3, settings=("curiosity.kind=rnd",)),
    "W3": Work("CartPole-v1", "mlp", 8, 128, 4, 1024, iterations=200),
    "W5": Work("benchmarks.peers.frames:Frames-v0", "nature", 32, 128, 4, 1024, iterations=2),
    "W6": Work("HalfCheetah-v5", "mlp", 8, 256, 10, 128, iterations=20),
    "W7": Work("LunarLander-v3", "mlp", 16, 256, 6, 256, iterations=20),
    "W8": Work(
        "benchmarks.peers.frames:BlindCartPole-v0", "mlp", 8, 128, 10, 256, iterations=5, settings=LSTM
    ),
    "W9": Work("benchmarks.peers.frames:Frames-v0", "nature", 32, 128, 4, 1024, iterations=2, settings=LSTM),
}
