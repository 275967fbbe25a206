"""All features: their tables, and the coordinator's halves. A new feature is named here and called in `learn`."""

from typing import TYPE_CHECKING

from parallel_ppo.envs.contract import EnvSpec
from parallel_ppo.features.adaptive_rate import AdaptiveRate, RateState
from parallel_ppo.features.episodes import Episodes, EpisodeState
from parallel_ppo.features.levels import LevelReplay, LevelState
from parallel_ppo.features.observations import Observations, ObservationState
from parallel_ppo.features.recurrence import HiddenRollout, HiddenStart
from parallel_ppo.features.rewards import Rewards, RewardState
from parallel_ppo.features.versions import Versions
from parallel_ppo.memory.shared import SharedMemory
from parallel_ppo.memory.table import Table
from parallel_ppo.settings.schema import Settings

if TYPE_CHECKING:
    from parallel_ppo.features.curiosity.state import Curiosity


def feature_tables(settings: Settings) -> list[type[Table]]:
    found: list[type[Table]] = [RewardState, ObservationState, EpisodeState, LevelState, RateState]
    found += [HiddenRollout, HiddenStart]
    if settings.curiosity.is_curious:
        from parallel_ppo.features.curiosity.state import CURIOSITY_TABLES  # only runs that need it load it

        found += CURIOSITY_TABLES
    return found


class Features:
    """The optional ones are None if the settings do not ask for them."""

    def __init__(self, settings: Settings, spec: EnvSpec, memory: SharedMemory) -> None:
        self.rewards = Rewards(settings, memory)
        self.observations = Observations(settings, spec, memory)
        self.episodes = Episodes(memory)
        self.versions = Versions(settings.sizes, memory)
        self.levels: LevelReplay | None = None
        self.adaptive: AdaptiveRate | None = None
        self.curiosity: Curiosity | None = None
        if LevelState.is_needed(settings):
            self.levels = LevelReplay(settings.env, memory.of(LevelState))
        if RateState.is_needed(settings):
            self.adaptive = AdaptiveRate(settings, memory)
        if settings.curiosity.is_curious:
            from parallel_ppo.features.curiosity import state

            self.curiosity = state.Curiosity(settings, spec, memory)

    def publish(self) -> None:
        """Writes every array that is derived from the state and read by workers."""
        for feature in (self.observations, self.levels, self.curiosity):
            if feature is not None:
                feature.publish()
