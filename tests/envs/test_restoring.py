"""What happens to a run when an environment's state cannot be reached again."""

from parallel_ppo.envs.build import probe
from parallel_ppo.policies.parameters import bind, num_flat
from parallel_ppo.policies.policy import Policy
from parallel_ppo.training.episodes import finished_episodes
from parallel_ppo.training.state import TrainingState
from parallel_ppo.workers.memory import Memory
from parallel_ppo.workers.pool import InlinePool
from parallel_ppo.workers.tasks import Collect
from parallel_ppo.workers.worker import Worker
from tests.conftest import small_settings

LENGTH, STEPS = 10, 7


def test_an_episode_that_is_lost_is_not_merged_with_the_next() -> None:
    """Seven steps, a restart that cannot restore, and 14 more: every finished episode still has ten steps."""
    settings = small_settings(
        "tests.envs.sample_envs:Drifting-v0",
        env__kwargs={"max_episode_steps": LENGTH},
        training__n_steps=STEPS,
        training__batch_size=56,
    )
    spec, slices = probe(settings), range(settings.shape.num_slices)
    policy = Policy(settings, spec)
    memory = Memory(settings, spec, num_flat(policy))
    state = TrainingState(settings, memory)
    bind(policy, state.parameters)
    episodes, exact = [], []
    for iteration in (0, 1, 2):
        if iteration < 2:
            pool = InlinePool(Worker(settings, spec, memory), slices, iteration)
            exact.append(pool.exact)
        pool.run(Collect(index, iteration) for index in slices)
        episodes += finished_episodes(state, memory)
        state.counters.iteration += 1
    assert exact == [True, False]
    assert episodes and {episode.length for episode in episodes} == {LENGTH}
