import json
from dataclasses import replace

import numpy as np
import pytest
from run_writer import write_evaluation, write_run

from parallel_ppo.exits import InputError
from parallel_ppo.reports import statistics
from parallel_ppo.reports.suite import Job, Plan, aggregate, load_plan, load_suite_runs, save_plan, summarise
from parallel_ppo.reports.suite_page import suite_markdown, write_suite


def make_suite(directory, games, settings=("",), seeds=(1, 2)):
    plan = Plan(
        games=list(games),
        seeds=list(seeds),
        total_timesteps=1_200_000,
        duration=None,
        arguments=["--num-levels", "200"],
        settings={name: ["--set", f"training.seed={name}"] if name else [] for name in settings},
    )
    for job in plan.jobs():
        path = directory / job.name
        write_run(path, env=job.game, seed=job.seed, iterations=40, num_envs=256, n_steps=128, num_levels=200)
        better = 0.5 * list(settings).index(job.setting)
        unseen = {} if job.game == "CartPole-v1" else {"test": 6.0 + job.seed / 4 + better}
        write_evaluation(path, {"train": 8.0 + job.seed / 4 + better, **unseen})
    return directory, Plan(**{**vars(plan), "finished": plan.names()})


@pytest.fixture
def suite(tmp_path):
    return make_suite(tmp_path, ["coinrun", "CartPole-v1"])


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


def test_every_game_and_setting_comes_before_the_second_seed():
    plan = Plan(
        games=["a", "m:b/c"], seeds=[1, 2], total_timesteps=1, duration=None, settings={"x": [], "y": []}
    )
    assert plan.names()[:5] == ["a-x-seed1", "a-y-seed1", "m_b_c-x-seed1", "m_b_c-y-seed1", "a-x-seed2"]
    assert Job("a", "", 3).name == "a-seed3"


def test_scores_and_published_values_at_equal_steps(suite):
    directory, plan = suite
    runs = load_suite_runs(plan, directory)
    result = summarise(plan, runs)
    coinrun, cartpole = result.games
    members = runs["coinrun", ""]
    means = [run.episodes.returns[-100:].mean() for run in members]
    assert coinrun.final_return.value == pytest.approx(np.mean(means))
    assert coinrun.returns["train"].value == pytest.approx(8.375)
    assert coinrun.returns["test"].value == pytest.approx(6.375)
    assert coinrun.gap.value == pytest.approx(2.0)
    assert coinrun.normalised["test"].runs == pytest.approx([(6.25 - 5) / 5, (6.5 - 5) / 5])
    assert [row.steps for row in coinrun.equal_steps] == [1_000_000]
    near = [run.episodes.returns[np.abs(run.episodes.step - 1e6) <= 150_000].mean() for run in members]
    assert coinrun.equal_steps[0].ours == pytest.approx(np.mean(near))
    assert coinrun.equal_steps[0].published == 7.9
    assert cartpole.normalised == {} and cartpole.returns["train"].value == pytest.approx(8.375)
    assert [(row.levels, row.num_games) for row in result.aggregates] == [("train", 1), ("test", 1)]
    assert result.missing == []


def test_two_settings_are_compared_game_by_game(tmp_path):
    directory, plan = make_suite(tmp_path, ["coinrun", "jumper"], ["plain", "better"])
    result = summarise(plan, load_suite_runs(plan, directory))
    scores = [[(6.25 - 5) / 5, (6.5 - 5) / 5], [(6.25 - 1) / 9, (6.5 - 1) / 9]]
    plain = next(row for row in result.aggregates if (row.setting, row.levels) == ("plain", "test"))
    assert plain.iqm.value == pytest.approx(float(statistics.iqm(np.ravel(scores))))
    assert plain.optimality_gap.value == pytest.approx(1 - np.mean(scores))
    assert plain.profile["value"][0] == 1.0 and plain.profile["value"][-1] == 0.0
    unseen = next(row for row in result.improvements if row.levels == "test")
    assert (unseen.setting, unseen.over, unseen.num_games) == ("better", "plain", 2)
    assert unseen.probability.value == 1.0
    text = suite_markdown(result)
    assert "| better better than plain, unseen levels | 2 | 1.00 (1.00 to 1.00) |" in text
    assert "| jumper, plain | 2 |" in text
    assert "- better: --num-levels 200 --set training.seed=better" in text
    assert "network nature | environments x steps 256 x 128 | epochs 3 | 4 cores, Test CPU | commit" in text


def test_every_game_has_its_own_statistics_over_seeds(tmp_path):
    directory, plan = make_suite(tmp_path, ["coinrun", "jumper"], seeds=(1, 2, 3, 4, 9))
    result = summarise(plan, load_suite_runs(plan, directory))
    scores = result.games[1].normalised["test"]
    assert scores.runs == pytest.approx([(6 + seed / 4 - 1) / 9 for seed in (1, 2, 3, 4, 9)])
    assert scores.iqm.value == pytest.approx(np.mean(scores.runs[1:4]))
    assert scores.median.value == pytest.approx(scores.runs[2])
    assert scores.mean.value == pytest.approx(np.mean(scores.runs))
    for found in (scores.iqm, scores.median, scores.mean):
        assert scores.runs[0] <= found.low < found.value < found.high <= scores.runs[-1]
    assert f"| jumper, unseen levels | 5 | {scores.iqm.value:.3f} (" in suite_markdown(result)


def test_a_game_whose_runs_are_all_equal_is_told_beside_the_intervals(tmp_path):
    directory, plan = make_suite(tmp_path, ["coinrun", "jumper"])
    assert "all equal" not in suite_markdown(summarise(plan, load_suite_runs(plan, directory)))
    row = aggregate("", "test", {"coinrun": np.array([0.5, 0.5]), "jumper": np.array([0.1, 0.3])})
    result = replace(summarise(plan, load_suite_runs(plan, directory)), aggregates=[row])
    assert "| unseen levels | 2 (1 with runs all equal) | 4 |" in suite_markdown(result)


@pytest.mark.parametrize(
    "change",
    [
        {"policy_sha256": "0"},
        {"env_id": "procgen:procgen-jumper-v0"},
        {"num_episodes": 8},
        {"max_steps": 40},
        {"deterministic": True},
        {"seed": 1},
        {"levels": {"train": {"return": {"mean": {"value": 1.0}}}}},
        {"levels": 7},
    ],
)
def test_an_evaluation_with_other_settings_is_not_used(suite, change):
    directory, plan = suite
    path = directory / "coinrun-seed2" / "suite_evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    coinrun, _ = summarise(plan, load_suite_runs(plan, directory)).games
    assert coinrun.normalised["test"].runs == pytest.approx([(6.25 - 5) / 5])


def test_the_evaluation_of_a_user_does_not_reach_the_suite(suite):
    """`evaluate.py RUN` writes evaluation.json, with settings that the user chose."""
    directory, plan = suite
    before = suite_markdown(summarise(plan, load_suite_runs(plan, directory)))
    for run in (directory / name for name in plan.finished):
        write_evaluation(run, {"train": 1.0, "test": 1.0}, file=run / "evaluation.json")
    assert suite_markdown(summarise(plan, load_suite_runs(plan, directory))) == before


def test_the_page_the_markdown_and_the_json(suite):
    directory, plan = suite
    runs = load_suite_runs(plan, directory)
    write_suite(summarise(plan, runs), runs, directory)
    text = (directory / "results.md").read_text()
    assert "| coinrun | 2 |" in text and "| CartPole-v1 | - |" not in text
    assert "prefers-color-scheme" in (directory / "results.html").read_text()
    content = json.loads((directory / "results.json").read_text(), parse_constant=pytest.fail)
    assert content["games"][0]["game"] == "coinrun"


def test_a_suite_that_has_just_begun(tmp_path):
    plan = Plan(games=["coinrun"], seeds=[1], total_timesteps=10, duration=None)
    runs = load_suite_runs(plan, tmp_path)
    result = summarise(plan, runs)
    (tmp_path / "victim").write_text("mine")
    for name in ("results.html", "results.md", "results.json"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    write_suite(result, runs, tmp_path)
    assert (tmp_path / "victim").read_text() == "mine", "a link in a downloaded suite leads nowhere"
    assert result.missing == ["coinrun-seed1"]
    assert "not finished yet: coinrun-seed1" in (tmp_path / "results.md").read_text()
