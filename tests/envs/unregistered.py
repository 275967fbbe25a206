"""An environment that is not registered, a function that makes it, and a wrapper."""

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Cart(CartPoleEnv):
    pass


def make_cart(render_mode: str | None = None) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Cart(render_mode=render_mode), 500)


class Same(gymnasium.Wrapper):
    pass


NOT_CALLABLE = 3
