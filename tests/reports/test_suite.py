import json

import numpy as np
import pytest
from run_writer import write_run

from parallel_ppo.exits import InputError
from parallel_ppo.reports.suite import Plan, load_plan, load_suite_runs, run_name, save_plan, summarise
from parallel_ppo.reports.suite_page import write_suite


@pytest.fixture
def suite(tmp_path):
    plan = Plan(games=["coinrun", "CartPole-v1"], seeds=[1, 2], total_timesteps=1_200_000, duration=None)
    for game, seed in plan.pairs():
        write_run(
            tmp_path / run_name(game, seed),
            env=game,
            seed=seed,
            iterations=40,
            num_envs=256,
            n_steps=128,
            num_levels=200,
        )
    return tmp_path, Plan(**{**vars(plan), "finished": plan.names()})


def test_a_plan_survives_the_disk(tmp_path):
    plan = Plan(
        games=["coinrun"], seeds=[1], total_timesteps=None, duration=0.5, arguments=["--policy", "nature"]
    )
    save_plan(plan, tmp_path)
    assert load_plan(tmp_path) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["suite.json"]


def test_a_directory_without_a_suite_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no .*suite\.json"):
        load_plan(tmp_path)
    (tmp_path / "suite.json").write_text('{"games": 1')
    with pytest.raises(InputError, match="cannot be read"):
        load_plan(tmp_path)


def test_every_game_comes_before_the_second_seed():
    plan = Plan(games=["a", "b"], seeds=[1, 2], total_timesteps=1, duration=None)
    assert plan.names() == ["a-seed1", "b-seed1", "a-seed2", "b-seed2"]


def test_scores_and_published_values_at_equal_steps(suite):
    directory, plan = suite
    runs = load_suite_runs(plan, directory)
    result = summarise(plan, runs)
    coinrun, cartpole = result.games
    means = [run.episodes.returns[-100:].mean() for run in runs["coinrun"]]
    assert coinrun.final_return.value == pytest.approx(np.mean(means))
    assert coinrun.normalised == pytest.approx([(mean - 5) / 5 for mean in means])
    assert [row.steps for row in coinrun.equal_steps] == [1_000_000]
    near = [
        run.episodes.returns[np.abs(run.episodes.step - 1e6) <= 150_000].mean() for run in runs["coinrun"]
    ]
    assert coinrun.equal_steps[0].ours == pytest.approx(np.mean(near))
    assert coinrun.equal_steps[0].published == 7.9
    assert cartpole.normalised == []
    assert result.normalised_mean.value == pytest.approx(np.mean(coinrun.normalised))
    assert result.missing == []


def test_the_page_the_markdown_and_the_json(suite):
    directory, plan = suite
    runs = load_suite_runs(plan, directory)
    write_suite(summarise(plan, runs), runs, directory)
    assert "| coinrun | 2 |" in (directory / "results.md").read_text()
    assert "prefers-color-scheme" in (directory / "results.html").read_text()
    content = json.loads((directory / "results.json").read_text(), parse_constant=pytest.fail)
    assert content["games"][0]["game"] == "coinrun"


def test_a_suite_that_has_just_begun(tmp_path):
    plan = Plan(games=["coinrun"], seeds=[1], total_timesteps=10, duration=None)
    runs = load_suite_runs(plan, tmp_path)
    result = summarise(plan, runs)
    write_suite(result, runs, tmp_path)
    assert result.missing == ["coinrun-seed1"]
    assert "not finished yet: coinrun-seed1" in (tmp_path / "results.md").read_text()
