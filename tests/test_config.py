"""Settings: where values come from, and what is said about wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grue.config import (
    PRESETS,
    Config,
    PPOConfig,
    differences,
    dump_config,
    flat,
    idle_settings,
    known_keys,
    load_config,
    override,
    preset_config,
    read_config,
)
from grue.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str) -> Path:
        file = tmp_path / "settings.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return _write


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_after_its_function_and_survives_its_file(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert config.preset == name
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert read_config(file) == config
    assert flat(read_config(file), local=False) == flat(config, local=False)


def test_a_file_that_was_cut_off_is_not_filled_up_with_defaults(tmp_path: Path) -> None:
    file, whole = tmp_path / "config.yaml", dump_config(preset_config("toy"))
    for cut in ("", whole[: whole.index("game:")], whole[: whole.index("\nppo:")], whole[: whole.index("eval:") + 6]):
        file.write_text(cut)
        with pytest.raises(ConfigError, match="was it cut off"):
            read_config(file)
    file.write_text(whole.replace("ppo:", "ppo:\n  new_trick: 3", 1))
    with pytest.raises(ConfigError, match=r"unknown setting ppo\.new_trick") as caught:
        read_config(file)
    assert "another version of grue" in caught.value.hint
    file.write_text(whole.replace("ppo:", "ppo:\n  plays_kept: 0", 1))  # of an older one, which did nothing
    assert read_config(file) == preset_config("toy")
    file.write_text(whole.replace("ppo:", "ppo:\n  plays_kept: 2", 1))
    with pytest.raises(ConfigError, match=r"unknown setting ppo\.plays_kept"):
        read_config(file)


def test_cooking16_is_the_default_and_has_the_settings_of_its_name() -> None:
    game = load_config().game
    assert game.name == "cookingworld"
    assert game.params == {"numLocations": 3, "includeDoors": 1, "numDistractorItems": 2, "numIngredients": 2}
    assert game.limit == 16


@pytest.mark.parametrize("name", PRESETS)
def test_no_presets_warm_up_is_cut_short(name: str) -> None:
    cfg = PRESETS[name]().ppo
    assert cfg.warmup == (cfg.warmup_iterations if cfg.iterations else 0)


GROUPS = ("ppo.group_weight=1", "ppo.plays_per_game=2")


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        (["ppo.clip=0.3", "sft.epochs=2"], []),
        (["ppo.iterations=0"], []),  # that a stage is left out is an effect
        (["ppo.iterations=0", "ppo.clip=0.3"], ["ppo.clip=0.3 has no effect with ppo.iterations=0"]),
        (["policy.min_p=0.1"], ["policy.min_p=0.1 has no effect with policy.kind=choose"]),
        (["policy.min_p=0.1", "policy.kind=aligned"], []),
        (["model.lora_rank=8"], ["model.lora_rank=8 has no effect with model.adapter=none"]),
        (["model.revision=abc"], ["model.revision=abc has no effect with model.name=embedded"]),
        (["model.revision=abc", "model.name=/"], ["model.revision=abc has no effect with model.name=/"]),
        (["model.revision=abc", "model.name=me/mine"], []),
        (["model.lora_rank=8", "model.quantize=nf4"], []),
        (["ppo.value_memory=9", "ppo.value_passes=0"], ["ppo.value_memory=9 has no effect with ppo.value_passes=0"]),
        (["demos.games=0", "sft.epochs=0"], []),
        (
            ["demos.games=0", "sft.epochs=0", "demos.replays=2"],
            ["demos.replays=2 has no effect with demos.games=0"],
        ),
        (["dagger.steps=3"], ["dagger.steps=3 has no effect with dagger.rounds=0"]),
        (["ppo.ratio=decision"], []),
        (
            ["ppo.ratio=decision", "policy.kind=aligned"],
            ["ppo.ratio=decision has no effect with policy.kind=aligned"],
        ),
        (["ppo.dev_games=9", "ppo.dev_every=0"], ["ppo.dev_games=9 has no effect with ppo.dev_every=0"]),
        (["ppo.normalise_rewards=true"], []),
        (["ppo.normalise_rewards=true", *GROUPS], ["ppo.normalise_rewards=True has no effect with ppo.group_weight=1"]),
        (["ppo.normalise_rewards=true", *GROUPS, "ppo.bootstrap_at_limit=true"], []),
        (["ppo.normalise_rewards=true", *GROUPS, "ppo.value_passes=0"], []),
        (["ppo.state_weight=1"], ["ppo.state_weight=1.0 has no effect with ppo.group_weight=0"]),
        (["ppo.state_weight=1", *GROUPS], []),
        (["ppo.target_kl=0.2", "ppo.epochs=1"], []),
        (
            ["ppo.warmup_iterations=9", *GROUPS, "ppo.value_passes=0"],
            ["ppo.warmup_iterations=9 has no effect with ppo.group_weight=1"],
        ),
        (["ppo.clip=0.3", "ppo.epochs=1"], []),
        (
            ["ppo.clip=0.3", "ppo.epochs=1", "ppo.minibatches=1"],
            ["ppo.clip=0.3 has no effect with ppo.epochs=1 and ppo.minibatches=1, but for rounding"],
        ),
        (["sft.smoothing=0.1", "policy.kind=write"], ["sft.smoothing=0.1 has no effect with policy.kind=write"]),
    ],
)
def test_settings_that_do_nothing_are_found(overrides: list[str], idle: list[str]) -> None:
    assert idle_settings(load_config("toy", overrides)) == idle


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ([], "sft.epochs=0"),
        (["dagger.rounds=1"], "sft.epochs=0 dagger.demo_share=0"),
        (["sft.epochs=0", "dagger.rounds=1"], "dagger.demo_share=0"),
    ],
)
def test_nothing_is_imitated_without_demonstrations(overrides: list[str], hint: str) -> None:
    with pytest.raises(ConfigError, match=r"demos\.games=0 leaves nothing to imitate") as caught:
        load_config("toy", ["demos.games=0", *overrides])
    assert caught.value.hint == f"record some with demos.games=N, or add {hint}"
    load_config("toy", ["demos.games=0", *overrides, *hint.split()])


def test_where_no_critic_is_asked_none_is_warmed_up() -> None:
    group = {"plays_per_game": 4, "episodes_per_iteration": 8, "group_weight": 1, "warmup_iterations": 3}
    assert PPOConfig(**group).warmup == 0
    assert PPOConfig(**group, bootstrap_at_limit=True).warmup == 3  # it says what comes after the limit
    assert PPOConfig(**{**group, "group_weight": 0.9}).warmup == 3


def test_every_setting_says_what_it_means() -> None:
    written = dump_config(load_config()).splitlines()
    lines = {line.split(":")[0].strip(): line for line in written if line.startswith("  ") or line[:1].isalpha()}
    for key in known_keys():
        assert "  # " in lines[key.rpartition(".")[2]], key


def test_later_sources_win(write) -> None:
    file = write("preset: smoke\nppo: {iterations: 7, epochs: 3}\nseed: 4\n")
    config = load_config(None, ["ppo.iterations=9"], file, seed=5)
    assert (config.preset, config.ppo.iterations, config.ppo.epochs, config.seed) == ("smoke", 9, 3, 5)
    assert config.ppo.slots == PRESETS["smoke"]().ppo.slots


def test_overrides_are_read_by_the_type_of_their_setting() -> None:
    config = load_config(
        overrides=[
            "ppo.learning_rate=1e-4",
            "ppo.normalise_advantages=false",
            "eval.decodings=sampled",
            "game.params.numLocations=5",
            "game.java=null",
            "model.name=Qwen/Qwen3-0.6B",
        ]
    )
    assert config.ppo.learning_rate == 1e-4
    assert config.ppo.normalise_advantages is False
    assert config.eval.decodings == ("sampled",)
    assert config.game.params["numLocations"] == 5
    assert config.game.params["numIngredients"] == 2
    assert config.game.java is None
    assert config.model.name == "Qwen/Qwen3-0.6B"


def test_another_game_drops_what_only_the_presets_game_can_do(write) -> None:
    file = write("preset: cooking16\ngame: {name: toy}")
    for config in (load_config("cooking16", ["game.name=toy"]), load_config(file=file)):
        assert (config.sft.rename, config.ppo.rename, config.ppo.hidden_state) == (0, 0, False)
        assert config.ppo.game_baseline
    own = load_config("cooking16", ["ppo.rename=0.5", "game.name=twc"])
    assert (own.ppo.rename, own.sft.rename) == (0.5, 0)


def test_whole_parameters_replace_and_another_game_drops_the_old_ones(write) -> None:
    assert load_config(overrides=["game.params=numLocations=2"]).game.params == {"numLocations": 2}
    assert load_config("cooking16", ["game.name=coin"]).game.params == {}
    mine = ["game.params.numLocations=4", "game.name=coin"]
    assert load_config("cooking16", mine).game.params == {"numLocations": 4}
    assert load_config(file=write("preset: cooking16\ngame: {name: coin}")).game.params == {}
    assert load_config(file=write("preset: cooking16\ngame: {name: cookingworld}")).game.params != {}


def test_a_game_that_is_named_without_a_preset_brings_its_own(write) -> None:
    file = write("game: {name: coin}")
    for config in (load_config(overrides=["game.name=coin"]), load_config(file=file)):
        assert config == preset_config("coin")
    assert load_config(overrides=["game.name=twc", "game.name=simonsays"]).preset == "simonsays"
    assert load_config(overrides=["game.name=twc"], file=file).preset == "twc"
    assert load_config(overrides=["game.name=cookingworld"]) == load_config() == preset_config("cooking16")
    assert load_config(overrides=["game.name=jericho:zork1.z3"]).preset == "other"
    assert load_config("smoke", ["game.name=coin"]).preset == "smoke"


def test_what_is_no_probability_of_a_whole_text_is_no_bonus() -> None:
    for kind in ("policy.kind=choose", "policy.kind=write", "policy.kind=score"):  # its default is a mean over tokens
        with pytest.raises(ConfigError, match=r"ppo\.valid_coef above 0 needs policy\.kind=aligned"):
            load_config("cooking16", [kind, "ppo.valid_coef=0.1"])
    for settings in (["policy.kind=aligned"], ["policy.kind=score", "policy.normalise=sum"]):
        assert load_config("cooking16", [*settings, "ppo.valid_coef=0.1"]).ppo.valid_coef == 0.1


def test_quantised_weights_bring_adapters() -> None:
    assert load_config(overrides=["model.quantize=nf4"]).model.adapter == "lora"
    with pytest.raises(ConfigError, match="needs adapter=lora"):
        load_config(overrides=["model.quantize=nf4", "model.adapter=none"])


def test_a_setting_of_the_command_line_is_not_blamed_on_the_file(write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("toy", ["model.quantize=nf4"], file=write("model: {adapter: none}"))
    assert caught.value.message.startswith("model: quantize=nf4 needs adapter=lora")
    assert caught.value.hint == "add model.adapter=lora"
    wrong = write("model: {adapter: none, quantize: nf4}")
    with pytest.raises(ConfigError, match=f"^model in {wrong}: quantize=nf4 needs"):
        load_config("toy", ["model.context=512"], file=wrong)
    with pytest.raises(ConfigError, match=r"^ppo\.valid_coef above 0 needs policy\.kind=aligned"):
        load_config("toy", ["policy.kind=choose"], file=write("ppo: {valid_coef: 0.1}\npolicy: {kind: aligned}"))


def test_parameters_may_be_text_in_a_file_too(write) -> None:
    params = load_config(file=write("game: {params: 'numLocations=3, includeDoors=1'}")).game.params
    assert params == {"numLocations": 3, "includeDoors": 1}
    assert load_config(file=write("game: {params: ''}")).game.params == {}
    more = ["game.params.numLocations=2"]
    params = load_config(overrides=more, file=write("game: {params: 'includeDoors=1'}")).game.params
    assert params == {"numLocations": 2, "includeDoors": 1}
    assert load_config(overrides=["game.params=includeDoors=1", *more]).game.params == params
    with pytest.raises(ConfigError, match="'numLocations:3' is not of the form name=value"):
        load_config(file=write("game: {params: 'numLocations:3'}"))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ppo.iteration", "ppo.iterations"),
        ("iterations", "ppo.iterations"),
        ("pp.iterations", "ppo.iterations"),
        ("PPO.gamma", "ppo.gamma"),
        ("learning_rate", "sft.learning_rate or dagger.learning_rate or ppo.learning_rate"),
        ("model.quantise", "model.quantize"),
        ("sed", "seed"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"{key}=1"])
    assert caught.value.message == f"unknown setting {key}"
    assert caught.value.hint == f"did you mean {meant}?"


def test_a_decoding_that_is_named_twice_is_measured_once() -> None:
    assert load_config(overrides=["eval.decodings=greedy,sampled,greedy"]).eval.decodings == ("greedy", "sampled")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("ppo.iterations=many", "ppo.iterations='many'"),
        ("ppo.gamma=1.5", "less than or equal to 1"),
        ("ppo.gamma=nan", "finite"),
        ("ppo.clip=inf", "finite"),
        ("seed=-1", "greater than or equal to 0"),
        ("eval.decodings=best", "'greedy' or 'sampled'"),
        ("eval.decodings=", "at least 1 item"),
        ("demos.teacher=silver", "'gold'"),
        ("game.params.numLocations=three", "game.params.numLocations='three'"),
        ("ppo.plays_per_game=3", "not a multiple of plays_per_game=3"),
        ("ppo.group_weight=0.5", "set plays_per_game to 2 or more"),
        (
            "ppo.minibatches=1000",
            "minibatches=1000 is more than episodes_per_iteration=128\nhint: set ppo.mini.*=128,",
        ),
        ("ppo.iterations=-1", "hint: ppo.iterations: rounds of playing and learning; 0 = skip$"),
        ("ppo=3", "ppo is a section"),
        ("seed.x=3", "seed="),
        ("iterations", "not of the form key=value"),
        ("preset=smoke", "preset is not a setting"),
        ("=3", "not of the form key=value"),
        ("game.params={rooms=2,rooms=3}", "'rooms' is given twice"),
    ],
)
def test_a_wrong_value_is_named_with_its_setting(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        load_config(overrides=[setting])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ppo: {iterations: 3, iterations: 4}", "given twice"),
        ("seed: 1\nppo:\n  iterations: [1,\n", r"of settings: .* \(line 4\)\nhint: fix that line$"),
        ("seed: 1\nseed: 2", "given twice"),
        ("a: &a [1]\nb: *a", "anchors"),
        ("game: !!python/object/apply:os.system ['true']", "not a YAML file of settings"),
        ("game: {_target_: os.system}", "unknown setting game._target_"),
        ("[1, 2]", "list"),
        ("just words", "str"),
        ("ppo: {iterations: yes}", "a number, not a switch"),
        ("ppo: [3]", "ppo in .*settings.yaml is a section"),
        ("ppo: {iteration: 3}", "ppo.iteration in .*settings.yaml"),
        ("1: 2", "key 1 is not a name"),
        ("? [1, 2]\n: 3", "is not a name"),
        ("seed: 1\n---\nseed: 2", "not a YAML file"),
        ("seed: 2024-01-01", "seed="),
        ("ppo: {gamma: .nan}", "finite"),
        ("{" * 5000, "not a YAML file"),
        ("preset: nosuch", "there is no preset 'nosuch'"),
        ("preset: ''", "there is no preset ''"),
    ],
)
def test_a_bad_file_is_refused_by_name(text: str, said: str, write) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(file=write(text))


def test_an_empty_file_changes_nothing(write) -> None:
    assert load_config(file=write("")) == load_config()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(file=tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(file=tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a YAML file"):
        load_config(file=binary)
    binary.write_bytes(b"a" * 1_000_001)
    with pytest.raises(ConfigError, match="too many"):
        load_config(file=binary)


def test_sampling_is_at_the_temperature_of_what_was_trained(tmp_path: Path) -> None:
    def of(*overrides: str) -> float:
        return load_config(overrides=overrides).sampling_temperature

    assert of() == 1
    assert of("ppo.temperature=0.5") == 0.5
    assert of("ppo.temperature=0.5", "ppo.iterations=0") == 1
    assert of("ppo.temperature=0.5", "eval.temperature=2") == 2
    assert of("ppo.temperature=0.5", "eval.temperature=null") == 0.5
    old = dump_config(load_config()).replace("  temperature: null", "  temperature: 1.0")
    (tmp_path / "config.yaml").write_text(old.replace("temperature: 1.0", "temperature: 0.5", 1))
    config = read_config(tmp_path / "config.yaml")
    assert (config.ppo.temperature, config.sampling_temperature) == (0.5, 1)
    (tmp_path / "switch.yaml").write_text(old.replace("temperature: 1.0", "temperature: yes"))
    with pytest.raises(ConfigError, match="a number, not a switch"):
        read_config(tmp_path / "switch.yaml")


def test_presets_are_found_by_name(write) -> None:
    with pytest.raises(ConfigError, match="no preset 'cokking16'") as caught:
        load_config("cokking16")
    assert caught.value.hint == "did you mean cooking16?"
    with pytest.raises(ConfigError, match="uses preset smoke, not toy"):
        load_config("toy", file=write("preset: smoke"))


def test_configurations_are_frozen() -> None:
    config = load_config()
    with pytest.raises(ValidationError):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Config(unknown=3)  # type: ignore[call-arg]


def test_the_hash_follows_what_can_change_a_result() -> None:
    config = load_config()
    for setting in ("threads=3", "game.java=/opt/java", "game.read_timeout_s=5"):
        assert flat(override(config, [setting]), local=False) == flat(config, local=False), setting
    for setting in ("seed=1", "ppo.gamma=0.9", "game.params.numLocations=2", "eval.decodings=greedy"):
        assert flat(override(config, [setting]), local=False) != flat(config, local=False), setting


def test_differences_name_the_settings_and_both_values() -> None:
    config = load_config()
    assert differences(config, override(config, ["ppo.clip=0.3", "threads=7"])) == {"ppo.clip": (0.2, 0.3)}
    assert differences(config, config) == {}


def _settled(text: str) -> Config | None:
    try:
        return load_config("toy", [text])
    except ConfigError:
        return None


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_override_ends_in_anything_but_a_config_or_a_config_error(key: str, value: str) -> None:
    assert _settled(f"{key}={value}") is None or key.strip() in known_keys()


@given(st.sampled_from(known_keys()), st.text(max_size=12))
def test_no_value_ends_in_anything_but_a_config_or_a_config_error(key: str, value: str) -> None:
    config = _settled(f"{key}={value}")
    assert config is None or override(config, []) == config


def test_a_folder_stays_the_model_from_wherever_a_run_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert load_config("toy", ["model.name=models/mine"]).model.name == str(tmp_path / "models/mine")
    assert load_config("toy", ["model.name=models/other"]).model.name == "models/other"  # may be a hub's
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config("toy", ["model.name=~/models/mine"]).model.name == str(tmp_path / "models/mine")
    (tmp_path / "settings.yaml").write_text("model: {name: models/mine}\n")
    assert load_config(file=tmp_path / "settings.yaml").model.name == str(tmp_path / "models/mine")


def test_a_file_may_say_a_list_as_the_command_line_does(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("track: tensorboard\neval:\n  decodings: greedy, sampled\n", encoding="utf-8")
    config = load_config(file=file)
    assert (config.track, config.eval.decodings) == (("tensorboard",), ("greedy", "sampled"))
    file.write_text("track: tensorbord\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="track"):
        load_config(file=file)


def test_a_runs_own_settings_in_a_new_run_are_those_of_its_game_too(tmp_path: Path) -> None:
    """A file's parameters replace the preset's, as on the command line: otherwise another game would be played."""
    config = load_config("cooking16", ["game.params=numLocations=1"])
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert load_config(file=file, seed=config.seed) == config
    file.write_text("game: {params: {}}\n", encoding="utf-8")
    assert load_config("cooking16", file=file).game.params == {}
    file.write_text("game: {limit: 9}\n", encoding="utf-8")
    assert load_config("cooking16", file=file).game.params == load_config("cooking16").game.params


def test_no_model_is_not_the_folder_that_one_is_in() -> None:
    with pytest.raises(ConfigError, match=r"model\.name"):
        load_config(overrides=["model.name="])


def test_two_seeds_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="two seeds are given: seed=3 and --seed 4"):
        load_config("toy", ["seed=3"], seed=4)
    with pytest.raises(ConfigError, match="two seeds"):
        override(load_config("toy"), ["seed=3"], seed=4)
    assert load_config("toy", ["seed=4"], seed=4).seed == 4


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("sft.lr=1", "did you mean sft.learning_rate?"),
        ("sft.passes=1", "settings of sft: learning_rate, "),
        ("ppo.foo=3", "settings of ppo: "),
        ("foo.bar=3", "sections: "),
        ("numRooms=3", "; a parameter of the game is game.params.numRooms"),
        ("ppo.iteration=3", "ppo.iterations?"),
    ],
)
def test_a_hint_is_near_or_none(given: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting") as caught:
        load_config("toy", [given])
    assert hint in caught.value.hint


def test_a_part_of_a_list_is_named_by_its_list() -> None:
    with pytest.raises(ConfigError, match=r"^track='foo': input should be"):
        load_config("toy", ["track=foo"])


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("seed: 1:30", "seed='1:30'", "seed"),
        ("game: {params: {numLocations: yes}}", "params.numLocations is a number, not a switch", ""),
        ("game: {params: null}", "game.params=None", "parameters of the game's generator"),
        ("ppo.iterations: 5", "unknown setting ppo.iterations in", "write ppo: and, indented under it, iterations:"),
    ],
)
def test_what_yaml_may_be_taken_for_is_refused(text: str, said: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(file=file)
    assert re.search(hint, caught.value.hint or "")


def test_a_number_with_a_zero_in_front_is_not_octal(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("seed: 010", encoding="utf-8")
    assert load_config(file=file).seed == 10


def test_settings_that_are_one_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="is one text, not a list") as found:
        load_config("toy", "ppo.iterations=3")
    assert found.value.hint == "['ppo.iterations=3']"
