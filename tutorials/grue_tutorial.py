# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Language-model policies for text games: from a clone to an agent that beats its teacher
#
# A hands-on tutorial with [grue](../README.md). A small language model learns a cooking game, first from demonstrations
# and then from its own play. Everything runs on a laptop without a GPU, and nothing is downloaded once the package is installed.
#
# **What is on this page, and what is imported.** Every cell that is run is shown. The SFT loss, the PPO loss, the PPO loop and the
# comparisons are written out here. The machinery comes from the library: the tree of valid actions and the pass that reads it
# ([`policy/aligned.py`](../src/grue/policy/aligned.py)), the collection of experience
# ([`rollout/collect.py`](../src/grue/rollout/collect.py)), batches ([`rollout/pack.py`](../src/grue/rollout/pack.py)), advantages
# ([`train/credit.py`](../src/grue/train/credit.py)), the optimiser step ([`train/learner.py`](../src/grue/train/learner.py)), the critic ([`train/critic.py`](../src/grue/train/critic.py)),
# the baseline ([`train/game_baseline.py`](../src/grue/train/game_baseline.py)), retrieval and statistics.
#
# **TL;DR.** We play a text game with a language model. It takes the action that it would write, given that the action is valid. We
# look at every token that the model sees, clone a teacher that wastes steps (SFT), measure properly, assign credit per turn, and
# improve the clone with proximal policy optimisation (PPO) until it beats the teacher. Then we let it remember earlier
# games, found with BM25 (a ranking of texts by the rare words that they share with a query), and measure, against a control,
# whether that helps.
#
# **Contents.**
# [1 Overview](#overview) ·
# [2 Background and related work](#background) ·
# [3 Software](#software) ·
# [4 The model and the task](#task) ·
# [5 Prompts and tokens](#prompts) ·
# [6 Expert data](#data) ·
# [7 Supervised fine-tuning](#sft) ·
# [8 Evaluating properly](#evaluation) ·
# [9 Actor and critic](#critic) ·
# [10 PPO, step by step](#ppo) ·
# [11 The improved agent](#improved) ·
# [12 RL with retrieval](#retrieval) ·
# [13 Experiments and discussion](#discussion) ·
# [14 Limitations and impact](#limitations) ·
# [15 Quantization and LoRA](#lora) ·
# [16 Next steps](#next) ·
# [17 Solutions](#solutions) ·
# [References](#references)

# %% [markdown]
# The first cell installs the package if it is missing: from the clone that contains this notebook or, for example on Colab,
# from the address that you enter.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

SOURCE = ["grue[notebooks] @ git+https://github.com/OWNER/grue"]  # Colab: the address of your copy
if Path("../pyproject.toml").exists():
    SOURCE = ["-c", "../constraints.txt", "-e", "..[notebooks]"]
if importlib.util.find_spec("grue") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *SOURCE], check=True)

# %% [markdown]
# <a name="overview"></a>
# ## 1 Overview
#
# Software that talks with people in shops, clinics or classrooms has to act through language over many steps: each
# answer changes what comes next, and success shows only at the end. Text games are a laboratory for this problem. They are
# fast and exactly repeatable, and they score themselves. What makes them hard (partial observation, long horizons, a
# vast action space) also makes the real problem hard. The same methods carry over to sequences other than text.
#
# **For whom.** You know reinforcement learning, and have trained few or no language models.
#
# **What you will be able to do.** Turn any causal language model (one that predicts the next token) into a policy; see which
# tokens it is trained on; fine-tune it on demonstrations; write the advantages and the clipped loss of PPO yourself, inside a
# given loop that trains with them; measure so that a difference means something.
#
# Terms that you do not know are in the [glossary](../docs/glossary.md).
#
# **What this tutorial adds.**
#
# - It is complete: the game, the prompt, SFT, PPO, evaluation with intervals, and retrieval with a control are all run.
# - The policy is *what the model would write, given that it is a valid action*, computed exactly on a tree of tokens. So
#   training uses the distribution that was played, and the clipped ratio begins at 1.
# - PPO learns against a baseline that knows the true game state of the train games. We name this knowledge for what it is and monitor it.
# - It measures the trap at the heart of many first attempts: a policy that looks fine during collection and fails in evaluation.
# - One readable file, [`one_file_ppo.py`](one_file_ppo.py), holds the loop with the simplest policy and critic; a test keeps
#   its advantages, losses and gradients equal to the library's.
#
# The structure resembles reinforcement learning from human feedback (RLHF; Ziegler et al. 2019). The difference is
# the loop. In RLHF a model answers one prompt, and a learned reward judges the answer. Here an environment with its own rules
# answers every action, its score is the reward, and experience has to be collected turn by turn (Carta et al.
# 2023).

# %% [markdown]
# <a name="background"></a>
# ## 2 Background and related work
#
# **A game as a POMDP.** A partially observable Markov decision process (Kaelbling, Littman and Cassandra 1998) has
# states that the player does not see, actions $a_t$, observations $o_t$ and rewards $r_t$. The player sees text, never the
# true game state, so a policy conditions on the history $s_t = (\text{task}, o_0, a_0, o_1, \dots, o_t)$. This suits a
# language model: the history is its prompt.
#
# **Behaviour cloning** (Pomerleau 1989) raises the probability of a teacher's actions. It is supervised learning, called
# supervised fine-tuning (SFT) for language models. Its weakness: small errors lead to histories that the teacher never showed
# (Ross, Gordon and Bagnell 2011). And nothing in it pushes a clone to be better than its teacher.
#
# **Policy gradients and PPO.** The policy plays, and actions that did better than expected become likelier. Proximal
# policy optimisation (Schulman et al. 2017) takes several careful steps on the same data by clipping how far the
# probability of an action may move. Generalised advantage estimation (GAE; Schulman et al. 2016) defines what "better
# than expected" means.
#
# | work | policy | credit | how this tutorial differs |
# |---|---|---|---|
# | GLAM (Carta et al. 2023) | scores every valid action as a whole, then a softmax | per action, PPO | the same distribution, but only the likely branches of one tree of actions are read, in one pass |
# | TWOSOME (Tan et al. 2024) | the same with scores normalised by tokens or words, on a frozen LLM with small trained adapters (LoRA, section 15) | per action, PPO | the sum, as in GLAM: the probability of the action as text |
# | ArCHer (Zhou et al. 2024) | free text | a critic per utterance, off-policy; token-level policy gradient below | on-policy, one level: turns |
# | GiGPO (Feng et al. 2025) | free text, long thoughts | groups of equal states instead of a critic | a critic; groups are an option of the library |
# | RLHF (Ziegler et al. 2019; Ouyang et al. 2022) | free text | one reward at the end of one answer, often with a per-token KL | many turns, reward from the environment |
#
# TextWorld (Côté et al. 2019) made such games a benchmark, and Jericho (Hausknecht et al. 2020) added the classics,
# such as Zork. This tutorial uses TextWorldExpress (Jansen and Côté 2023), a much faster simulator of similar games.
#
# **Two more ideas** are used below. Constraining a model to a grammar token by token distorts its distribution; decoding
# can be *aligned* with the model instead (Park et al. 2024; section 5). And in training, though not in play, a critic may
# see more than the policy does: *asymmetric actor-critic* (Pinto et al. 2018; section 9).

# %% [markdown]
# <a name="software"></a>
# ## 3 Software
#
# You need Python 3.11 or newer and the package. Java, which the game engine needs, is installed as a wheel. Results depend on
# versions, on the processor and on the number of threads, which round sums differently: over a whole training that changes the outcome as much
# as another seed would ([measured](../README.md#the-result)). So your numbers will
# differ from those in the text; we print what they depend on. `GRUE_TUTORIAL_FAST=1` in the environment makes everything small: it shows that the code
# works and proves nothing else. The full version takes 5 to 30 minutes on two cores; the last code cell
# prints how long it took.

# %%
import html
import os
import random
import textwrap
import time
from copy import deepcopy
from functools import partial

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # before transformers is imported

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import HTML, Markdown, display

from grue.config import preset_config
from grue.hardware import hardware, physical_cores, versions

FAST = os.environ.get("GRUE_TUTORIAL_FAST") == "1"
STARTED = time.monotonic()


def size(full: int, fast: int) -> int:
    """The full amount, or the small one in fast mode."""
    return fast if FAST else full


torch.set_num_threads(max(1, min(physical_cores(), int(os.environ.get("OMP_NUM_THREADS", "64")))))
print("mode:", "FAST: too small for conclusions" if FAST else "full")
print({name: version for name, version in versions().items() if name in ("python", "torch", "transformers", "grue")})
print({name: value for name, value in hardware().items() if name != "system"})
PRESET = preset_config("cooking16")  # the library's settings; ours come from here, with smaller sizes

# %% [markdown]
# All figures use the colours of Okabe and Ito, which colour-blind readers can tell apart. Markers and hatches differ too,
# so the figures survive a black-and-white printer.

# %%
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
plt.rcParams.update(
    {
        "figure.figsize": (7.2, 3.4),
        "figure.dpi": 110,
        "font.size": 10.5,
        "axes.grid": True,
        "grid.alpha": 0.35,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 2,
        "figure.constrained_layout.use": True,
    }
)

# %% [markdown]
# <a name="task"></a>
# ## 4 The model and the task
#
# ### 4.1 The game
#
# In CookingWorld the player reads the recipe in the kitchen, finds the ingredients in three rooms behind doors, cuts and cooks them
# as the recipe says, prepares the meal and eats it. To cut or cook a food of the recipe in another way, or to eat it alone, loses the
# game, and the step limit is tight. A *task* is a game with its parameters, a fold, a seed and a step limit; equal tasks give equal
# texts. Games come in three *folds*, with their own layouts *and* their own recipes: train games are learnt from, dev games choose
# settings and weights, and test games are played once, at the end.

# %%
from grue.games import make, tasks
from grue.games.play import play
from grue.games.teachers import TEACHERS, teacher

PARAMS, LIMIT = PRESET.game.params, PRESET.game.limit
print(f"{PARAMS}, {LIMIT} steps")
SLOTS = size(96, 12)  # games played at once
games = [make("cookingworld", PARAMS) for _ in range(SLOTS)]
game = games[0]


def spread(fold: str, count: int):
    """`count` tasks spread evenly over a fold: ranges of seeds differ in difficulty."""
    every = tasks("cookingworld", PARAMS, fold, LIMIT)
    return [every[i * len(every) // count] for i in range(count)]


train_tasks, dev_tasks = spread("train", size(900, 40)), spread("dev", size(200, 12))
print(len(train_tasks), "train games,", len(dev_tasks), "dev games; the test fold stays shut until the end")

# %% [markdown]
# Here is the engine's own solution of one game, its *gold path*. Watch for wasted steps. Does it look around right after
# being told where it is, take a cookbook that can be read where it lies, or close the fridge and cupboards afterwards?


# %%
def show(episode, width: int = 110) -> None:
    """Print an episode; + marks rewards."""
    print(episode.turns[0].observation.goal, "\n")
    for number, turn in enumerate(episode.turns, 1):
        seen = " ".join(turn.observation.text.split())
        print(f"     {seen[:width]}{'...' if len(seen) > width else ''}")
        print(f"{number:>3} > {turn.action}" + (f"   +{turn.reward:.2f}" if turn.reward else ""))
    print(f"     {' '.join(episode.final.text.split())[:width]}\n{episode.outcome}, score {episode.score:.2f}")


show(play(game, train_tasks[0], teacher("gold", game), record_limit=50))
print("\n" + textwrap.fill("Valid actions at the start: " + ", ".join(game.reset(train_tasks[0]).actions), 110))

# %% [markdown]
# ### 4.2 Baselines before anything is learnt
#
# A success rate means little without a floor and a ceiling. `random` picks any valid action. `gold` follows the
# solution above, and `gold-pruned` the same without steps that do nothing for the goal. `explore` is written by hand and sees only what a
# policy sees. `optimal` sees everything. The error bars are Wilson's 95 % intervals (Wilson 1927), which stay meaningful at 0 %
# and 100 %. A game that crashes is neither won nor lost, and is left out.

# %%
from grue.evaluate.stats import wilson
from grue.types import Outcome

baseline_tasks = dev_tasks[:: max(1, len(dev_tasks) // size(100, 6))]
baselines = {}
for name in TEACHERS:
    player = teacher(name, game)
    baselines[name] = [play(game, task, player) for task in baseline_tasks]


def rate(episodes) -> tuple[float, float, float]:
    """(share won, low, high) of the games that did not crash."""
    ended = [episode.won for episode in episodes if not episode.failed]
    interval = wilson(sum(ended), len(ended))
    return sum(ended) / len(ended), interval.low, interval.high


def bars(results: dict, title: str) -> None:
    """Success rates with intervals. The numbers above the bars make colours unnecessary."""
    _, axis = plt.subplots()
    for place, episodes in enumerate(results.values()):
        value, low, high = rate(episodes)
        axis.bar(
            place,
            value,
            color=BLUE,
            alpha=0.75,
            hatch=["", "//", "..", "xx", "\\\\", "++"][place % 6],
            edgecolor="black",
        )
        axis.errorbar(place, value, [[value - low], [high - value]], color="black", capsize=5)
        axis.text(place + 0.08, min(high + 0.02, 1.02), f"{value:.0%}")
    axis.set(xticks=range(len(results)), xticklabels=results, ylim=(0, 1.12), ylabel="games won", title=title)
    plt.show()


bars(baselines, f"{LIMIT} steps, {len(baseline_tasks)} dev games")

# %% [markdown]
# The gold player knows where everything is; the games that it does not win run into the step limit. `explore` knows nothing in
# advance and reads. The gap between these two bars is what reinforcement learning can win and cloning this teacher cannot.
#
# ### 4.3 The model
#
# The package includes a small decoder (Llama architecture). It was trained on many recorded games with *other* layouts but
# train recipes. These were played by a random player and by the gold path: unchanged, with random steps inserted, or with its steps
# in another order that works. None came from a better player. It has also
# read gold play of the other seven families ([the base](../docs/base.md)). The same call loads any other causal
# language model: put its name on the Hugging Face hub, or a folder, in place of `embedded` ([section 16](#next)).

# %%
from grue.config import ModelConfig
from grue.models.load import load_model
from grue.models.policy_model import PolicyModel
from grue.policy.decision import Decoding
from grue.policy.policy import make_policy
from grue.prompts.tokens import Encoder

torch.manual_seed(0)
config = ModelConfig(name="embedded")
# how many tokens a transcript has room for: play keeps a table with a row per game and a column per token
CONTEXT = config.context
# the batch of an optimiser step is split into micro-batches of at most this many tokens, each one pass through the
# model; their gradients are summed, so the step is the same and needs less memory
MICRO_TOKENS = 8192
lm, tokenizer = load_model(config)
model, encoder = PolicyModel(lm), Encoder(tokenizer, PRESET.policy)
print(f"policy: {PRESET.policy.kind}, min_p {PRESET.policy.min_p}")
count = sum(p.numel() for p in lm.parameters())
print(
    f"{lm.config.model_type}: {count / 1e6:.1f} M parameters, vocabulary {len(tokenizer)},"
    f" {lm.config.num_hidden_layers} layers"
)


def learnt() -> dict[str, torch.Tensor]:
    """A copy of the trainable weights. Cells restore the weights that they start from, so each can be run again."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


base_weights = learnt()

# %% [markdown]
# <a name="prompts"></a>
# ## 5 Prompts and tokens
#
# ### 5.1 What the model really sees
#
# The prompt is the transcript and nothing else: the task with its step limit, then observations and actions in turn.
#
# A *token* is an entry of the model's vocabulary, usually a piece of a word; its *id* is the number of that entry. The base's tokenizer
# was built from such games, so stock sentences are single tokens; an ordinary tokenizer needs several times as many.
# Token ids are **only ever appended**. Sampled tokens are never decoded and tokenised again: the tokens might come back
# different, and the model would then be trained on actions that it never took.
# A *segment* is one unbroken sequence of token ids. Ours has room for 1024 tokens, more than these games need. A longer game would
# continue in a second segment, which begins with the task and the latest observation: what came before is forgotten.
#
# Below is one game, sampled from the base before SFT, token by token. Grey tokens are read and never trained. **Orange, bold, underlined**
# tokens are actions that were *decided*: they were weighed against others, and PPO trains these decisions. Blue italic tokens also belong
# to actions but needed no decision: line ends, and actions with no alternative that was likely enough. SFT trains every token
# of the teacher's actions except such line ends.
#
# A copy of the model, the *actor*, plays the games. The trained weights are kept in 32 bits, because lower precision would lose small updates.
# Play makes no updates, and is faster in 16 bits where the processor has instructions for them. `sync` copies the trained weights to
# the actor. (Where 32 bits are fastest, as on older processors, the actor is the trained model itself.)

# %%
from grue.evaluate.evaluate import evaluate
from grue.policy.actor import Actor

actor = Actor(model, "auto")  # plays in the number format that is fastest here
policy = make_policy(actor.model, encoder)


def put_back(weights: dict[str, torch.Tensor]) -> None:
    """Continue learning and playing from these weights."""
    model.load_state_dict(weights, strict=False)
    actor.sync()


put_back(base_weights)
looked_at = evaluate(policy, games, dev_tasks[:: max(1, len(dev_tasks) // size(6, 4))], Decoding(), context=CONTEXT)
first = looked_at[0]


def coloured(episode, most: int = 260) -> HTML:
    """The first tokens of an episode, coloured by role."""
    ids = episode.segments[0].ids
    role = dict.fromkeys(range(len(ids)), "read")
    for turn in (turn for turn in episode.turns if turn.segment == 0):
        start = turn.state_position + 1
        decided = len(turn.candidates[turn.branches[0].chosen].ids) if turn.branches else 0
        role.update(dict.fromkeys(range(start, start + len(encoder.action(turn.action))), "forced"))
        role.update(dict.fromkeys(range(start, start + decided), "decided"))
    style = {
        "read": "color:#555",
        "forced": f"color:{BLUE};font-style:italic",
        "decided": f"color:{ORANGE};font-weight:bold;text-decoration:underline",
    }
    spans = []
    for place, token in enumerate(ids[:most]):
        text = html.escape(tokenizer.decode([token])).replace("\n", "↵<br>")
        spans.append(f'<span style="{style[role[place]]};border-right:1px dotted #bbb">{text}</span>')
    trained = sum(kind == "decided" for kind in role.values())
    weighed = sum(bool(turn.branches) for turn in episode.turns)
    note = (
        f"<p>{len(ids)} tokens in all, {trained} of them decided, in {weighed} of {episode.steps} turns;"
        f" outcome: {episode.outcome}</p>"
    )
    return HTML(
        f'<div style="font-family:monospace;white-space:pre-wrap;line-height:1.7">{"".join(spans)} ...</div>{note}'
    )


display(coloured(first))

# %% [markdown]
# ### 5.2 From probabilities of tokens to a policy over actions
#
# The game lists its valid actions. Their tokens form a *trie*: actions whose **tokens** begin alike share a path. Letters do not
# count: where the vocabulary splits two actions differently, they part at once, though both begin with "examine". A point where the
# trie continues is a *node*; the tokens that can come next are its *children*. The first eight of each node are shown.


# %%
def draw_trie(node, depth: int = 0, most: int = 3) -> None:
    """The first levels of a trie; a chain without a choice is written as one piece."""
    for token, child in list(zip(node.tokens, node.nodes, strict=True))[:8]:
        text = tokenizer.decode([token])
        while child.action is None and len(child.tokens) == 1:
            text, child = text + tokenizer.decode([child.tokens[0]]), child.nodes[0]
        print("    " * depth + repr(text) + ("" if child.action is None else f"   -> {child.action}"))
        if child.action is None and depth + 1 < most:
            draw_trie(child, depth + 1, most)


draw_trie(policy.tries(first.turns[0].observation.actions))

# %% [markdown]
# A language model assigns probabilities to tokens. Here are two ways to turn them into a policy over valid actions. Neither
# ever takes an invalid action, and the probabilities of both sum to one.
#
# **Token by token** (the library's `choose`). At each node $n$ of the trie, the model's probabilities are renormalised over
# the children $C(n)$. The probability of an action is the product along its path:
# $\pi_\text{choose}(a \mid s) = \prod_n p(c_n(a) \mid n) \,/\, \sum_{c \in C(n)} p(c \mid n)$.
#
# **Whole actions** (`aligned`, which we use from here on). Let $p(a \mid s)$ be the probability of writing the text of $a$,
# over the whole vocabulary (but for the end of its line where nothing else could follow), and $A(s)$ the valid actions. Then
#
# $$\pi(a \mid s) = \frac{p(a \mid s)}{\sum_{a' \in A(s)} p(a' \mid s)},$$
#
# which is what the model would write, *given that it is valid* (Park et al. 2024). $p(a \mid s)$ is a product over tokens, so
# short actions are favoured while a model is unsure of the texts; hence TWOSOME's normalisations. Our base knows the texts, so you
# will hardly see it here; with a model that has not read the game
# [you would](../docs/models.md#what-an-ordinary-model-makes-of-a-choice). A worked example shows where the two
# differ. A cook holds a potato. The recipe says to slice the potato and to dice the carrot, which is in another room.

# %%
verb = {"dice": 0.6, "slice": 0.3, "read": 0.1}  # what the model would write first
noun = {"dice": {"carrot": 0.99, "potato": 0.01}, "slice": {"potato": 1.0}, "read": {"cookbook": 1.0}}  # and next
valid = [("dice", "potato"), ("slice", "potato"), ("read", "cookbook")]  # there is no carrot here
by_token = [verb[v] / sum(verb.values()) for v, _ in valid]  # the second word is the only child: probability 1
texts = [verb[v] * noun[v][n] for v, n in valid]
by_action = [p / sum(texts) for p in texts]
for (v, n), p, q in zip(valid, by_token, by_action, strict=True):
    print(f"{v} {n:<9} choose {p:4.0%}   aligned {q:4.0%}")

# %% [markdown]
# The model said "dice" and meant the carrot. Token by token, "dice" is chosen, and then only the potato is left: a wrong cut,
# and the game is lost. Weighed as a whole, "dice potato" is the unlikely text that it is. How often do the two ways
# differ in play? (`weigh` gives $\pi(a \mid s)$ of each action. The 1.0 in its call is the *temperature*: log-probabilities are divided by it before they are
# renormalised, so 1 leaves them as they are, and more makes the policy more random.)

# %%
from grue.policy.choose import ChoosePolicy

put_back(base_weights)
by_tokens, compared = ChoosePolicy(actor.model, encoder), []
for episode in looked_at:
    for turn in episode.turns:
        ids = episode.segments[turn.segment].ids
        p, q = (dict(one.weigh(turn, ids, 1.0)) for one in (by_tokens, policy))
        assert abs(sum(p.values()) - 1) < 1e-4 and abs(sum(q.values()) - 1) < 1e-4
        compared.append((0.5 * sum(abs(p[action] - q[action]) for action in q), turn, p, q))
other = sum(max(p, key=p.get) != max(q, key=q.get) for _, _, p, q in compared)
_, turn, p, q = max(compared, key=lambda row: row[0])
print(f"another likeliest action in {other} of {len(compared)} turns of the base;")
print(f"probability that lies on other actions: {np.mean([row[0] for row in compared]):.1%} a turn. Where most:\n")
print("   ", " ".join(turn.observation.text.split())[:100], "...")
for action in sorted(q, key=lambda action: -max(p[action], q[action]))[:4]:
    print(f"    {action:<34} choose {p[action]:4.0%}   aligned {q[action]:4.0%}")

# %% [markdown]
# Only likely branches have to be read. Actions with less than `min_p` times the probability of the likeliest one are left
# out (after Nguyen et al. 2024), which keeps the trees small. The weighed actions are stored with the turn, and PPO reads the
# same trees again, so log-probability and entropy are exact. What is left out is neither tried nor learned, so the cut must not be
# large: with 0.01 instead of 0.001, the library's main job ends 5 to 7 points lower, in one training each, which may be chance
# ([measured](../docs/experiments.md#2026-11-27--what-a-sure-policy-no-longer-tries)).
#
# For the base the two ways hardly differ: it has read games whose steps came in many orders, and seldom names what is not at hand.
# After training they do: the library's main job with `choose` ends some 17 points lower
# ([measured](../docs/results.md#what-the-parts-of-cooking16-are-worth)). With an earlier base, which knew scripts in one order only,
# weighing whole actions removed most of the wrong cuts and cooks
# ([measured](../docs/experiments.md#2026-11-21--where-ppo-loses-games-reading-tries-rewards)).

# %% [markdown]
# **Exercise 1.** You are given the log-probabilities of the tokens of every valid action. Compute $\pi$ of the first action, one number. Replace
# `None`; the cell after it tells you whether you are right. All solutions are in [section 17](#solutions).


# %%
def aligned_probability(token_log_probs: list[list[float]]) -> float:
    return None  # your code


# %%
def check(number: int, right) -> None:
    """Print the state of an exercise. `right` is None while there is no answer."""
    print(f"Exercise {number}:", {None: "no answer yet", True: "correct", False: "not yet"}[right])


def check_1(answer) -> bool | None:
    found = answer([[np.log(0.6), np.log(0.01)], [np.log(0.3), np.log(1.0)], [np.log(0.1), np.log(1.0)]])
    return None if found is None else bool(abs(found - by_action[0]) < 1e-6)


check(1, check_1(aligned_probability))

# %% [markdown]
# <a name="data"></a>
# ## 6 Expert data
#
# ### 6.1 Gold paths
#
# Demonstrations are gold paths of train games. Recorded for 16 steps, most of them would end before the meal is
# prepared, and a clone would see few endings. So they are recorded to the end, regardless of the step limit. (With this base, which
# knows endings, [cutting them cost nothing that was measured](../docs/eval-gap.md#defects-of-training).)
# Look at how few fit within it.

# %%
DEMOS = size(400, 24)
gold = teacher("gold", game)
# spread over the train games, and so over the fold
demos = [play(game, train_tasks[i * len(train_tasks) // DEMOS], gold, record_limit=50) for i in range(DEMOS)]
lengths = [episode.steps for episode in demos]
figure, axis = plt.subplots()
axis.hist(lengths, bins=range(min(lengths), max(lengths) + 2), color=BLUE, alpha=0.75, edgecolor="black")
axis.axvline(LIMIT + 1, color=ORANGE, linestyle="--")
axis.text(LIMIT + 1.1, axis.get_ylim()[1] * 1.04, "too late from here on", color=ORANGE)
axis.set_ylim(0, axis.get_ylim()[1] * 1.15)
axis.set(xlabel="steps of the gold path", ylabel="train games", title="The teacher needs longer than the game lasts")
plt.show()
print(
    f"within {LIMIT} steps: {np.mean([n <= LIMIT for n in lengths]):.0%};"
    f" invalid actions: {sum(not t.valid for e in demos for t in e.turns)}"
)

# %% [markdown]
# ### 6.2 Replays with steps left out
#
# A clone of whole scripts answers a skipped step by going back to the script, so a
# shortcut that exploration finds costs a step instead of saving one
# ([measured](../docs/experiments.md#2026-11-20--can-ppo-find-the-shortcuts-that-gold-does-not-take)). Therefore each demonstration is also replayed with
# random steps missing, in the spirit of noise injection (Laskey et al. 2017). Replays are not selected by success: needed
# steps are left out as often as useless ones, and replays that fail are kept. One step is always kept, reading the
# cookbook: a clone that has to guess what the cookbook says stops reading it
# ([measured](../docs/experiments.md#2026-11-21--what-a-clone-does-when-it-samples-skipped-steps-forced-tokens-gambling)). Reinforcement learning has to find out which steps
# are worth skipping.
#
# (The invalid actions counted above are the gold path opening cupboards that are already open. What the game
# does not list is read as history and not learnt.)

# %%
from grue.games.omission import replay_with_omissions
from grue.games.twx.renamed import renamed_episode
from grue.rollout.pack import samples, tokenise

settings = PRESET.demos
print(f"replays {settings.replays}, omission {settings.omission}, always kept: {settings.omission_keeps!r}")
replays = [
    replay_with_omissions(game, demo, settings.omission, random.Random(f"replay/{i}/{k}"), keep=settings.omission_keeps)
    for i, demo in enumerate(demos)
    for k in range(settings.replays)
]
names = random.Random("names")
# foods are renamed in most episodes: winning takes reading the cookbook, not remembering recipes
shown = [renamed_episode(e, names) if names.random() < PRESET.sft.rename else e for e in demos + replays]
tokenised = [tokenise(episode, policy) for episode in shown]
lessons = samples(tokenised)
decided = sum(len(turn.branches) for item in lessons for turn in item.turns)
print(
    f"{len(lessons)} episodes, {sum(len(item.ids) for item in lessons):,} tokens,"
    f" {decided:,} of them the teacher's actions: the loss is on these"
)

# %% [markdown]
# ### 6.3 From an episode to tokens that carry loss
#
# The teacher knows nothing of tokens. `tokenise` writes its episode as the transcript of section 5.1 and records, for every token of its actions,
# where that token is decided. `samples` then cuts the transcript into training examples. A *sample* is one segment with its turns.
#
# A causal language model reads the tokens up to some position and predicts the **next** one. So the prediction of token $i$ is found at
# position $i-1$, and one pass over a sample gives the predictions of all its tokens. In pre-training, usually all of them carry loss. Here only
# the teacher's tokens do: the policy reads what the game says, but never has to say it. (Other libraries do the same with a mask, or with the label
# -100 at all other tokens.) Each row below is a position of one sample: the token read there, the next token, its log-probability under the base, and whether it carries loss.
# (Log-probabilities are in *nats*, the unit of the natural logarithm: -0.69 nats is a probability of one half.)


# %%
def decisions(item) -> dict[int, int]:
    """position -> the token to predict there, for every position that carries loss."""
    return {branch.position: branch.children[branch.chosen] for turn in item.turns for branch in turn.branches}


def next_log_probs(ids) -> torch.Tensor:
    """(L, V): at each of L positions, the log-probability of every token of the vocabulary as the next one."""
    with torch.no_grad():
        return lm(torch.tensor([ids], device=lm.device)).logits[0].float().log_softmax(-1).cpu()


def piece(token: int) -> str:
    """A token as text, shortened."""
    text = repr(tokenizer.decode([token]))
    return text if len(text) <= 36 else text[:32] + "...'"


put_back(base_weights)
# one demonstration whose actions were all valid, and its sample
lesson = next(episode for episode in tokenised if all(turn.valid for turn in episode.turns))
(item,) = samples([lesson])
ids, trained = lesson.segments[0].ids, decisions(item)
assert all(ids[place + 1] == token for place, token in trained.items())
written_by = ["game"] * len(ids)
for turn in item.turns:
    for number in range(len(encoder.action(turn.action))):  # a forced line end is not decided
        written_by[turn.state_position + 1 + number] = "teacher" if number < len(turn.branches) else "end"
next_log_p = next_log_probs(ids)
print(f"{'position':>8}  {'read here':<36} {'comes next':<36} {'written by':<10} {'log p':>6}  loss")
for place in range(max(0, item.turns[0].state_position - 2), item.turns[2].state_position):
    following = ids[place + 1]
    row = f"{place:>8}  {piece(ids[place]):<36} {piece(following):<36} {written_by[place + 1]:<10}"
    print(f"{row} {round(float(next_log_p[place, following]), 2) + 0.0:>6.2f}" + ("  yes" if place in trained else ""))
print(f"\nthis sample: {len(ids)} tokens, {len(item.turns)} turns, loss at {len(trained)} positions")

# %% [markdown]
# Where the game repeats what was just read, the base is sure of every token. A mean over all tokens would hide the few that matter. With this
# tokenizer most actions are one or two tokens; with an ordinary one they are longer, but the rule is the same.
#
# **Exercise 2.** Find the trained positions. You are given who wrote each token of a transcript: `"game"`, `"teacher"`, or `"end"` for a line end
# that was the only way to continue an action. Which positions carry loss? The check uses a small transcript, and the one
# above.


# %%
def trained_positions(written_by: list[str]) -> list[int]:
    return None  # your code


# %%
def check_2(answer) -> bool | None:
    small = answer(["game", "game", "teacher", "teacher", "end", "game", "teacher"])
    return None if small is None else sorted(small) == [1, 2, 5] and sorted(answer(written_by)) == sorted(trained)


check(2, check_2(trained_positions))

# %% [markdown]
# **Exercise 3.** A forward pass over `ids` gives `logits_LV`: at each of $L$ positions, a score for each of $V$ tokens. The softmax of these scores is the
# distribution of the **next** token. Compute $\log p$ of the text `ids[first:]`, given `ids[:first]`. For the text of an action this is the
# $\log p(a \mid s)$ of section 5.2 (where `ids` ends before a line end that is not counted). Without smoothing, the SFT loss is minus the sum of such terms, divided by the number of trained tokens.


# %%
def text_log_prob(logits_LV: torch.Tensor, ids: list[int], first: int) -> float:
    return None  # your code: mind the shift by one


# %%
def check_3(answer) -> bool | None:
    generator = torch.Generator().manual_seed(0)
    logits_LV, ids = torch.randn(6, 5, generator=generator), [3, 0, 4, 1, 1, 2]
    found = answer(logits_LV, ids, 4)
    if found is None:
        return None
    # of six positions, 3 and 4 predict the tokens 4 and 5
    expected = -torch.nn.functional.cross_entropy(logits_LV[3:5], torch.tensor(ids[4:]), reduction="sum")
    return bool(abs(float(found) - float(expected)) < 1e-4)


check(3, check_3(text_log_prob))

# %% [markdown]
# ### 6.4 A batch: nodes, children, turns
#
# `collate` turns samples into tensors. The capitals at the end of a name are its axes, here and in the library:
#
# - **N**, the *nodes* of the batch: the places where something is decided and trained;
# - **C**, the largest number of *children* of any node in the batch: what can be chosen there, tokens or whole actions. Shorter rows are padded with $-\infty$;
# - **T**, the *turns*. `node_turn_N` says to which turn a node belongs, `chosen_N` which child was taken. Advantages, values and ratios have one
#   number per turn.
#
# `logits_NC` is what the model says of these children. For SFT they are tokens, with their $\log p$ over the whole vocabulary; for PPO they are whole
# actions, with scores that a softmax over the row turns into $\pi(a \mid s)$. (The name is that of such scores, *logits*.)
#
# Below are two turns of a demonstration as SFT reads them, then two turns of a game sampled by the base (section 5.1) as PPO reads them,
# with made-up advantages.

# %%
from dataclasses import replace

from grue.rollout.pack import collate


def two_turns(item, first: int):
    """A sample with only the turns `first` and `first + 1`, cut off after their decisions."""
    turns = item.turns[first : first + 2]
    last = max([turn.state_position for turn in turns] + [b.position for turn in turns for b in turn.branches])
    part = slice(first, first + 2)
    return replace(
        item, ids=item.ids[: last + 1], turns=turns, advantages=item.advantages[part], returns=item.returns[part]
    )


def most_decided(items):
    """The two consecutive turns with the most nodes; among equals, those with the longest actions."""

    def size(item):
        return sum(len(turn.branches) for turn in item.turns), item.size - len(item.ids)

    return max((two_turns(item, first) for item in items for first in range(len(item.turns) - 1)), key=size)


put_back(base_weights)


def two_decimals(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def display_batch(title: str, item) -> None:
    """Print the batch of one sample and the model's output for it, which is the input of the losses below."""
    batch = collate([item])
    with torch.no_grad():
        reading = model(*batch.to(next(model.parameters()).device).inputs)
    n, c = reading.logits_NC.shape
    print(f"{title}: N = {n} nodes, C = {c} children at most, T = {len(item.turns)} turns")
    print(
        f"  ids_BL        {batch.ids_BL.shape[1]} ids: {len(item.ids)} of the transcript, {item.size - len(item.ids)} of trees"
    )
    print("                the transcript ends with " + " ".join(piece(token) for token in item.ids[-4:]))
    for name in ("node_turn_N", "chosen_N", "advantages_T"):
        print(f"  {name:<13} {getattr(batch, name).tolist()}")
    nodes = [(number, turn, branch) for number, turn in enumerate(item.turns) for branch in turn.branches]
    for node, (number, turn, branch) in enumerate(nodes):
        texts = [turn.candidates[child].ids if turn.candidates else [child] for child in branch.children]
        row = dict(zip(map(tokenizer.decode, texts), reading.logits_NC[node].tolist(), strict=False))
        likeliest = sorted(row, key=row.get, reverse=True)[:3]
        shown = ", ".join(f"{text!r} {two_decimals(row[text])}" for text in likeliest)
        taken = list(row)[branch.chosen]
        print(
            f"  logits_NC[{node}]  turn {number}, took {taken!r} {two_decimals(row[taken])}; of {len(row)}: {shown}"
            f" (together {two_decimals(sum(map(np.exp, row.values())))})"
        )


display_batch("SFT", most_decided(lessons[:50]))
print()
made_up = [np.array([0.5, -0.5] * len(episode.turns))[: len(episode.turns)] for episode in looked_at]
display_batch("PPO", most_decided(samples(looked_at, made_up, made_up)))

# %% [markdown]
# **SFT.** A node is a token of the teacher's action. A turn therefore has as many nodes as its action has decided tokens, and appears that many times
# in `node_turn_N`. (The last of these tokens is not among the ids: it is predicted, but nothing is predicted from it.)
# A row of `logits_NC` holds $\log p$, over the whole vocabulary, of each token with which a valid action could continue. "Together" is their
# total probability. Advantages are not used.
#
# **PPO.** A node is a turn, because `aligned` decides once per turn, among whole actions. A turn with only one action that was likely enough has no
# node; its ratio is always 1, and it gives no gradient. $C$ counts the actions that were weighed. A row of `logits_NC` holds the score of each of them:
# $\log p(a \mid s)$, summed over its tokens as in exercise 3. The tokens of these actions follow the transcript as trees, so one pass reads them all, and
# `ids_BL` is longer than the transcript. The last token of an action is predicted, not read, so an action of one token makes it no longer. A softmax over the row gives the $\pi(a \mid s)$ of section 5.2. With `choose`, nodes would be tokens
# here too, and $\log \pi$ of a turn a sum over its nodes. That is why the PPO loss sums over nodes with `node_turn_N`.

# %% [markdown]
# <a name="sft"></a>
# ## 7 Supervised fine-tuning
#
# SFT makes the text of the teacher's action likely, over the whole vocabulary, so no tree of other actions has to be read. Let $N$ be the set
# of nodes in a batch (a node is a token of such an action, as in 6.4). At each node $n$ the target puts $1-\epsilon$ on the teacher's token $c^*_n$ and spreads $\epsilon$ over
# the tokens $C(n)$ with which a valid action could continue:
#
# $$L_\text{SFT} = -\frac{1}{|N|} \sum_n \Big[(1-\epsilon) \log p(c^*_n \mid n) + \frac{\epsilon}{|C(n)|} \sum_{c \in C(n)} \log p(c \mid n)\Big]$$
#
# Without $\epsilon$ (label smoothing; Szegedy et al. 2016) the clone of a deterministic teacher becomes certain of
# everything, and a policy that is certain never tries anything that it could learn from. Here $\epsilon$ is 0.02. The learning rate rises
# to 3e-4 during the first steps (a quarter of all, ten at most), then falls linearly to 0. One pass over each episode
# reads all of its turns at once. Each point of the curves below is a different batch, measured before its step. A batch that holds
# mostly replays looks worse, whatever has been learnt.

# %%
from grue.rollout.pack import minibatches
from grue.train.learner import Learner
from grue.train.schedule import learning_rate_factor

SMOOTHING, BATCH = PRESET.sft.smoothing, PRESET.sft.episodes_per_batch


def sft_loss(reading, batch, nodes: int):
    """A micro-batch's share of the mean over the `nodes` (trained tokens) of the optimiser step."""
    # N tokens; for each, log p (over the whole vocabulary) of the C tokens with which a valid action could continue
    log_probs_NC = reading.logits_NC
    padded_NC = log_probs_NC.isinf()
    chosen_N = log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1)
    spread_N = log_probs_NC.masked_fill(padded_NC, 0.0).sum(-1) / (~padded_NC).sum(-1)
    loss = (-(1 - SMOOTHING) * chosen_N - SMOOTHING * spread_N).sum() / nodes
    right = (log_probs_NC.argmax(-1) == batch.chosen_N).float().sum() / nodes
    return loss, {"accuracy": right.detach()}


def sft_learner(model) -> Learner:
    return Learner(
        model,
        learning_rate=PRESET.sft.learning_rate,
        weight_decay=0.01,
        max_grad_norm=1.0,
        micro_tokens=MICRO_TOKENS,
        dtype="auto",
    )


def loss_on(episodes) -> float:
    """The SFT loss of the present weights on tokenised episodes."""
    items = samples(episodes)
    nodes = sum(len(turn.branches) for item in items for turn in item.turns)
    return sft_learner(model).measure(items, partial(sft_loss, nodes=nodes))["loss"]


def fine_tune(model, items, seed: str = "sft") -> list[dict]:
    """One pass over `items`; returns the metrics of every optimiser step."""
    learner = sft_learner(model)
    steps, log = max(1, len(items) // BATCH), []
    for part in minibatches(items, steps, random.Random(seed)):
        nodes = sum(len(turn.branches) for item in part for turn in item.turns)
        rate_now = learning_rate_factor("linear", learner.step_count, steps, min(10, steps // 4))
        log.append(learner.step(part, partial(sft_loss, nodes=nodes), rate_now))
    return log


put_back(base_weights)
base_results = {
    kind: evaluate(policy, games, dev_tasks, Decoding(greedy=kind == "greedy"), context=CONTEXT)
    for kind in ("greedy", "sampled")
}
some = {"demonstrations": tokenised[: len(demos) : 5], "replays": tokenised[len(demos) :: 10]}
kinds = {kind: episodes for kind, episodes in some.items() if episodes}  # you may have left the replays out
before = {kind: loss_on(episodes) for kind, episodes in kinds.items()}
log = fine_tune(model, lessons)
sft_weights = learnt()
actor.sync()  # copies the trained weights to the playing copy
figure, (left, right) = plt.subplots(1, 2)
left.plot([row["loss"] for row in log], color=BLUE, marker=".")
left.set(xlabel="optimiser step", ylabel="loss (nats)", title="SFT loss")
right.plot([row["accuracy"] for row in log], color=GREEN, linestyle="--", marker=".")
right.set(xlabel="optimiser step", ylabel="tokens like the teacher's", title="Accuracy")
plt.show()
for kind, episodes in kinds.items():
    print(f"loss on {kind + ':':<16} before SFT {before[kind]:.2f}, after {loss_on(episodes):.2f}")

# %% [markdown]
# <a name="evaluation"></a>
# ## 8 Evaluating properly
#
# Four habits make the difference between a number and a result.
#
# 1. **Fixed games from a fold on which nothing was learnt or chosen.** We choose on dev and open test once, at the end.
# 2. **Greedy and sampled side by side.** They are two policies: collection in training samples, while evaluation is often greedy.
# 3. **Intervals.** Every game is won or lost, so the standard error of a success rate $p$ over $n$ games is $\sqrt{p(1-p)/n}$. A few games
#    say little: the cell below prints how little.
# 4. **Pairs.** Two policies on the same games share the games' difficulty, so the interval of the *paired* difference is narrower.

# %%
from grue.evaluate.bootstrap import paired_wins
from grue.evaluate.stats import smallest_detectable_difference

put_back(sft_weights)
sft_results = {
    kind: evaluate(policy, games, dev_tasks, Decoding(greedy=kind == "greedy"), context=CONTEXT)
    for kind in ("greedy", "sampled")
}
gold_dev = [play(game, task, gold) for task in dev_tasks]


def difference(a, b) -> str:
    """a - b in percentage points, with the paired interval over the same games."""
    both = [(x.won, y.won) for x, y in zip(a, b, strict=True) if Outcome.FAILED not in (x.outcome, y.outcome)]
    found = paired_wins(*zip(*both, strict=True))
    return f"{100 * found.value:+.1f} points [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


bars(
    {
        "gold": gold_dev,
        "base\ngreedy": base_results["greedy"],
        "base\nsampled": base_results["sampled"],
        "SFT\ngreedy": sft_results["greedy"],
        "SFT\nsampled": sft_results["sampled"],
    },
    f"{len(dev_tasks)} dev games",
)
print("SFT less base, greedy:   ", difference(sft_results["greedy"], base_results["greedy"]))
print("SFT, greedy less sampled:", difference(sft_results["greedy"], sft_results["sampled"]))
for games_played in (20, 100, 1000):
    least = 100 * smallest_detectable_difference(games_played, 0.3)
    print(f"{games_played:>5} games each show differences from {least:.0f} points on (at 30 %, power 80 %)")

# %% [markdown]
# **The clone wins fewer games than the base.** The base has read the same teacher: the losses above show that SFT has little of the teacher's play left to teach. What it
# adds are the replays with steps left out, on which the loss falls most. From them the clone learns to skip steps, needed ones included, and to go on from where it is.
# In the teacher's own states its likeliest action is still nearly always the teacher's, but a clone that has skipped a step soon is in others: there it walks to and
# fro (`move` in the figure of section 11). The lost points are accepted because PPO learns only from what its policy tries. Whole scripts alone would make the
# clone sure of every step; with the replays it still tries to do without some. At the library's size replays cost no greedy success
# ([measured](../docs/experiments.md#2026-11-27--what-each-part-of-the-preset-is-worth-now-that-exploration-lasts)).
#
# **Why not PPO straight from the base?** With this base one could: it has read the same steps in many orders, and in the library's main job PPO
# ends no lower without SFT, in one training. What costs some 24 points there is SFT on whole scripts without replays: such a clone is sure
# of the script, useless steps included, and PPO does not get away from it
# ([each part of the main job, left out](../docs/results.md#what-the-parts-of-cooking16-are-worth)). A model that has not read the game needs SFT, and
# then replays matter. You can try it: replace `sft_weights` with `base_weights` in the cell of section 10.3.

# %% [markdown]
# <a name="critic"></a>
# ## 9 Actor and critic
#
# ### 9.1 A critic that reads what the policy reads
#
# The actor of actor-critic is the policy: the model with its tree of actions (`Actor` above is only its playing copy). The critic
# $V_\phi(s_t)$ estimates what the rest of the game is worth. It is a
# small head on the features of the **last token before the action**: the vector that the model's last layer gives there
# (libraries call it the hidden state). The actor computes it anyway, so the critic needs no pass of its own. Two choices matter.
# The critic reads the features before the action, not those after it. And its gradient stops at the head: value learning through a shared
# trunk (the layers of the language model below the head) disturbs a policy that is nearly deterministic.
#
# $$L_V = \frac{1}{T} \sum_t \big(V_\phi(\mathrm{sg}(x_t)) - \hat R_t\big)^2$$
#
# Here $x_t$ are these features, $\mathrm{sg}$ means "no gradient flows through", and $\hat R_t$ is the return that section 10.1 estimates.

# %%
print(model.value_head)
weights = sum(p.numel() for p in model.value_head.parameters())
print(f"critic: {weights:,} parameters; its first answer is 0 for every state")

# %% [markdown]
# ### 9.2 A baseline that knows more: name it
#
# Some games are short, others long. The transcript shows only bit by bit which kind it is. To a critic that reads nothing else,
# each such hint looks like luck that the action had caused. A baseline may depend on anything but the action without biasing the policy
# gradient (up to the bootstrapping of the next section). So in training a second small network corrects the critic:
#
# $$b_t = V_\phi(s_t) + f_\psi\big(V_\phi(s_t),\ t,\ \text{score},\ \text{game},\ d_t\big)$$
#
# It is told how long the teacher needed, how earlier plays of this game went, and $d_t$: **how many steps a shortest win
# still takes from the true game state**. That is asymmetric actor-critic (Pinto et al. 2018).
#
# **This is privileged knowledge, and a claim that uses it has to say so.** $d_t$ comes from a planner that sees the whole
# game. It is used on train games only, no state is labelled with an action, and the policy never sees it, neither in
# training nor in play. But it needs a simulator that can be queried. The library's setting `ppo.hidden_state=false` goes
# without it ([what that costs](../docs/results.md#what-the-parts-of-cooking16-are-worth)). Here is what the baseline is told while
# the teacher plays:

# %%
from grue.games.twx.told import Told

knows: dict = {}  # what games have told about their true state: asked once per task
told_play = play(Told(game, knows), train_tasks[0], gold, record_limit=50)
print("step  left  to go  spare  action")
for number, turn in enumerate(told_play.turns):
    left, to_go = LIMIT - number, turn.observation.to_go
    print(f"{number + 1:>4}  {left:>4}  {to_go!s:>5}  {'' if to_go is None else left - to_go:>5}  {turn.action}")

# %% [markdown]
# Each row shows what is known *before* its action. A step towards the win lowers "to go" by one and leaves "spare" unchanged. Any
# other step costs one spare step, or two if it has to be undone (a door closed, a thing put away). Once "spare" is below 0, the game cannot be won in
# time. The baseline sees this at once; the critic has to guess it from the text. Look at the
# row of `read cookbook`: to a planner that knows the recipe, even reading is wasted. So $d_t$ does not label what is right, and
# the correction is learnt on top of $V_\phi$, which can rise when something worth knowing has been read.

# %% [markdown]
# <a name="ppo"></a>
# ## 10 PPO, step by step
#
# ### 10.1 Credit per turn
#
# Rewards, values and advantages belong to turns, not to tokens. Between the tokens of one action nothing is seen and nothing is rewarded. With a
# discount per token an action would be worth less only because its name is long, and with a clipped ratio per token (section 10.2) an action of
# three tokens could change its probability by the factor $1.2^3 = 1.73$ in one iteration, and one of a single token only by 1.2. With discount $\gamma$ and $\lambda$ per turn,
#
# $$\delta_t = r_t + \gamma V(s_{t+1}) - V(s_t), \qquad \hat A_t = \delta_t + \gamma\lambda \hat A_{t+1}, \qquad \hat R_t = \hat A_t + V(s_t)$$
#
# where $V = 0$ after the last turn, and $b$ of section 9.2 replaces $V$ when the policy learns. So $b$ is also in the returns $\hat R_t$,
# to which critic and baseline are fitted. The step limit is part of
# the task and stands in the prompt, so reaching it is an end like any other. The game pays for partial progress, and a
# policy can live well on that without ever finishing, so the winning turn gets a bonus on top.
#
# **Which discount?** With a small $\gamma$ late rewards count little. A cook who will hardly finish in time then loses little by a wrong cut, and
# gambles (cooks with whatever device is at hand). With $\gamma$ near 1 a gamble costs more, but a wasted step costs almost nothing. The baseline
# of section 9.2 shows that cost, because it sees at once when a step was wasted; so credit need not reach far, and $\lambda$ can be small. The
# choice matters less than this may sound: in the library's main job $\gamma = 1$ with $\lambda = 0.95$ ended 1.8 points lower, and no win bonus
# at the same level, both within what chance does ([measured](../docs/results.md#what-the-parts-of-cooking16-are-worth)).

# %%
print(f"gamma {PRESET.ppo.gamma}, lambda {PRESET.ppo.lam}, bonus for a win {PRESET.ppo.win_bonus}")
for gamma in (PRESET.ppo.gamma, 0.93, 1.0):
    print(f"gamma {gamma:.2f}: a win at step {LIMIT} is worth {gamma ** (LIMIT - 1):.2f} of one at step 1")

# %% [markdown]
# **Exercise 4.** Write the advantages $\hat A_t$. `values` has one entry per turn. The loop below trains with your function once it
# is correct, and with the library's until then.


# %%
def my_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    return None  # your code: go backwards


# %%
from grue.algos.advantages import turn_gae


def check_4(answer) -> bool | None:
    rewards, values = [0.0, 0.25, 0.0, 1.0], [0.2, 0.4, 0.1, 0.6]
    found = answer(rewards, values, 0.9, 0.8)
    expected, _ = turn_gae(np.array(rewards), np.array(values), 0.0, 0.9, 0.8)
    return None if found is None else len(found) == len(expected) and bool(np.allclose(found, expected))


check(4, check_4(my_gae))


def library_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    return list(turn_gae(np.array(rewards), np.array(values), 0.0, gamma, lam)[0])  # 0.0: nothing follows the last turn


gae = my_gae if check_4(my_gae) else library_gae

# %% [markdown]
# Two famous ways to get it wrong, both found in real notebooks: never setting $V(s_{t+1})$ (then
# $\delta_t = r_t - V(s_t)$, and every step without reward looks like a mistake), and not resetting the running sum between
# episodes (then luck leaks into the game before). The figure shows what they do to one game of the teacher. Its values are made up:
# our critic still returns 0. The first mistake is fatal: three short trainings with it end at 0.1 % instead of 59.9 %. The second
# changed nothing that three trainings could show ([measured](../docs/eval-gap.md#defects-of-training)).

# %%
rewards = np.array([turn.reward for turn in told_play.turns])
rewards[-1] += PRESET.ppo.win_bonus * told_play.won
values, gamma, lam = np.linspace(0.8, 1.1, len(rewards)), PRESET.ppo.gamma, PRESET.ppo.lam  # a critic that gains hope


def backwards(bootstrap: bool = True, running: float = 0.0) -> np.ndarray:
    """GAE with its two mistakes: the next value left out, and a running sum that comes in from the next episode."""
    advantages = np.zeros(len(rewards))
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if bootstrap and t + 1 < len(rewards) else 0.0
        running = rewards[t] + gamma * following - values[t] + gamma * lam * running
        advantages[t] = running
    return advantages


figure, axis = plt.subplots()
axis.plot(gae(list(rewards), list(values), gamma, lam), color=BLUE, marker="o", label="GAE")
axis.plot(backwards(bootstrap=False), color=ORANGE, marker="x", linestyle="--", label="no bootstrap")
axis.plot(backwards(running=0.8), color=GREEN, marker=".", linestyle=":", label="a leak of 0.8")
axis.bar(range(len(rewards)), rewards, color=GREY, alpha=0.4, label="reward")
axis.axhline(0, color="black", linewidth=1)
axis.set(xlabel="turn", ylabel="advantage", title="Credit for one game")
axis.legend()
plt.show()

# %% [markdown]
# ### 10.2 The clipped surrogate
#
# With the ratio of **whole actions**
# $\rho_t = \exp(\log \pi_\theta(a_t \mid s_t) - \log \pi_\text{old}(a_t \mid s_t))$,
#
# $$L_\text{clip} = -\frac{1}{T} \sum_t \min\big(\rho_t \hat A_t,\ \mathrm{clip}(\rho_t, 1-\varepsilon, 1+\varepsilon)\, \hat A_t\big)$$
#
# A good action becomes likelier until its probability has grown by the factor $1+\varepsilon$; then its gradient is
# zero. A bad action becomes less likely down to the factor $1-\varepsilon$. Where the policy has moved in the wrong direction,
# the gradient always flows.
#
# **Exercise 5.** Write this surrogate: one number for each of $T$ turns, without the mean. The loop below trains with your function once it is
# correct, and with the library's until then.


# %%
def my_surrogate(log_probs_T, old_T, advantages_T, clip: float = 0.2):
    return None  # your code: a loss, so lower is better


# %%
from grue.algos.losses import clipped_surrogate, node_entropies


def library_surrogate(log_probs_T, old_T, advantages_T, clip: float = 0.2):
    return clipped_surrogate(log_probs_T - old_T, advantages_T, (1 - clip, 1 + clip))


def check_5(answer) -> bool | None:
    """Values and gradients, for good actions and bad ones, on both sides of the band."""
    found = {}
    for function in (answer, library_surrogate):
        log_probs_T = torch.linspace(-1.6, -0.4, 41, requires_grad=True)
        for sign in (1.0, -1.0):
            loss_T = function(log_probs_T, torch.full((41,), -1.0), torch.full((41,), sign), 0.25)
            if loss_T is None:
                return None
            if loss_T.shape != (41,) or not loss_T.requires_grad:
                return False
            (gradient_T,) = torch.autograd.grad(loss_T.sum(), log_probs_T)
            found.setdefault(function, []).append(torch.stack([loss_T.detach(), gradient_T]))
    return all(torch.allclose(mine, theirs, atol=1e-6) for mine, theirs in zip(*found.values(), strict=True))


check(5, check_5(my_surrogate))
surrogate = my_surrogate if check_5(my_surrogate) else library_surrogate

# %%
log_ratio = torch.linspace(-0.6, 0.6, 121)
figure, axis = plt.subplots()
axis.plot(
    log_ratio.exp(),
    -surrogate(log_ratio, torch.zeros(121), torch.ones(121)),
    color=BLUE,
    label="better than expected (A = 1)",
)
axis.plot(
    log_ratio.exp(),
    -surrogate(log_ratio, torch.zeros(121), -torch.ones(121)),
    color=ORANGE,
    linestyle="--",
    label="worse (A = -1)",
)
axis.axvspan(0.8, 1.2, color=GREY, alpha=0.15)
axis.set(
    xlabel="ratio of the action's probability, new to old",
    ylabel="objective",
    title="Beyond the band on the good side the gradient is 0",
)
axis.legend()
plt.show()

# %% [markdown]
# ### 10.3 Entropy, KL, and one iteration
#
# The loss adds an entropy bonus, $-c_H \bar H$, which keeps the policy exploring. $H$ is exact, over all actions that were weighed. A
# KL penalty to the **reference** policy (the clone, not the policy of the last iteration) can hold the agent near its
# teacher. Ours has no reason to stay there, so its weight is 0, and we only monitor how far the policy moves per iteration:
# `kl` is the mean of $\rho_t - 1 - \log \rho_t$ over the played actions. It is never negative, and on average it is
# $\mathrm{KL}(\pi_\text{old}\,\|\,\pi_\theta)$ (Schulman 2020). `clipped` is the share of turns whose ratio has left the band. Both are those of the last
# minibatch, when the policy has moved most. One iteration:
#
# 1. play games with the current policy (sampled), and store log-probabilities and values;
# 2. assign credit per turn against the baseline, scaled to mean 0 and standard deviation 1 over the iteration;
# 3. make one pass of minibatch steps on the clipped loss, since fresh games are cheap here;
# 4. fit critic and baseline on the turns of the last iterations.
#
# In the first iterations (`warmup`) only 1, 2 and 4 happen: the advantages of an untrained critic are noise.
#
# The numbers are those of `cooking16`: $\varepsilon$ is 0.2, $c_H$ 0.05, the learning rate of the critic 3e-3 and that of the policy 2e-4, which falls linearly
# to 0 after the warm-up.
#
# Dropout is off in the update; with it the ratio would not begin at 1. `gap` below checks exactly that: it is the mean absolute
# difference between the log-probabilities of play and of training before the first step of an iteration.

# %%
from grue.algos.losses import branch_log_probs
from grue.games.training import training_games
from grue.rollout.collect import collect
from grue.rollout.pack import Sample
from grue.train.critic import Critic
from grue.train.game_baseline import GameBaseline
from grue.train.ppo import draw_tasks
from grue.train.ppo_update import explained_variance
from grue.train.schedule import policy_rate_factor

CFG = PRESET.ppo.model_copy(
    update={"episodes_per_iteration": size(96, 8), "minibatches": size(PRESET.ppo.minibatches, 2)}
)
DEMO_STEPS = {demo.task.seed: demo.steps for demo in demos}  # what the baseline is told about a train game


def assign_credit(played, values_of) -> tuple[list, list]:
    """Per game: advantages (T,), scaled over all turns of the iteration, and what the critic should have said (T,)."""
    advantages, returns = [], []
    for episode, values in zip(played, values_of, strict=True):
        rewards = [turn.reward for turn in episode.turns]
        rewards[-1] += CFG.win_bonus * episode.won
        advantages.append(np.array(gae(rewards, list(values), CFG.gamma, CFG.lam)))
        returns.append(advantages[-1] + values)
    every = np.concatenate(advantages)
    return [(each - every.mean()) / (every.std() + 1e-8) for each in advantages], returns


# %% [markdown]
# **The loss** is that of 10.2 less the entropy bonus. `index_add` sums the nodes of each turn. A turn without nodes keeps 0, before and after a step, so
# its ratio is 1. `seen` takes the features that the critic will learn from.


# %%
def ppo_loss(reading, batch, turns: int, seen: list):
    """A micro-batch's share of the loss over the `turns` of the optimiser step; `seen` collects features for the critic."""
    # N turns with a choice among at most C whole actions: a log-softmax over their scores gives log pi
    log_probs_NC = branch_log_probs(reading.logits_NC, 1.0)
    chosen_N = log_probs_NC.gather(1, batch.chosen_N[:, None]).squeeze(1)
    zeros_T = torch.zeros(len(batch.turn_row_T), device=chosen_N.device)
    log_probs_T = zeros_T.index_add(0, batch.node_turn_N, chosen_N)
    entropy_T = zeros_T.index_add(0, batch.node_turn_N, node_entropies(log_probs_NC))
    loss_T = surrogate(log_probs_T, batch.old_log_probs_T, batch.advantages_T, CFG.clip) - CFG.entropy_coef * entropy_T
    seen.append((reading.states_TH.detach(), batch.returns_T))
    gap_T = (log_probs_T - batch.old_log_probs_T).detach()
    metrics = {
        "entropy": entropy_T.detach().sum() / turns,
        "gap": gap_T.abs().sum() / turns,
        "kl": (gap_T.exp() - 1 - gap_T).sum() / turns,
        "clipped": ((gap_T.exp() - 1).abs() > CFG.clip).float().sum() / turns,
    }
    return loss_T.sum() / turns, metrics


# %% [markdown]
# **The loop.** `learner.step` takes one optimiser step, in as many micro-batches as memory needs. `learner.measure` runs the same loss without a step: during the
# warm-up it only collects features for the critic.


# %%
def train_ppo(model, actor, policy, seats, pool, iterations: int, name: str, watch=None, demo_steps=None) -> list[dict]:
    """PPO from the current weights of `model`, on games of `pool`; returns one row of metrics per iteration.

    `seats(iteration)` returns the games to play on; `watch(iteration)` is called every few iterations. `demo_steps`: how
    long the teacher needed for the games (by default those of the kitchen).
    """
    learner = Learner(
        model,
        learning_rate=CFG.learning_rate,
        weight_decay=0.0,
        max_grad_norm=1.0,
        micro_tokens=MICRO_TOKENS,
        dtype="auto",
    )
    critic = Critic(model.value_head, CFG.value_learning_rate, CFG.value_passes, CFG.value_memory, name)
    baseline = GameBaseline(DEMO_STEPS if demo_steps is None else demo_steps, CFG, name)
    warmup = min(CFG.warmup_iterations, iterations // 2)
    rows = []
    for iteration in range(iterations):
        actor.sync()
        if watch is not None and iteration % size(10, 2) == 0:
            watch(iteration)
        # 1. play
        chosen = draw_tasks(pool, CFG.episodes_per_iteration, 1, f"{name}/{iteration}/tasks")
        played = collect(policy, seats(iteration), chosen, Decoding(), seed=f"{name}/{iteration}", context=CONTEXT)
        played = [episode for episode in played if not episode.failed]  # a crash teaches nothing
        # 2. credit
        values = baseline.values(played)
        advantages, returns = assign_credit(played, values)
        # 3. learn
        items: list[Sample] = samples(played, advantages, returns)
        warm, steps, seen = iteration < warmup, [], []
        factor = policy_rate_factor("linear", iteration, iterations, warmup)
        for part in minibatches(items, CFG.minibatches, random.Random(f"{name}/{iteration}/order")):
            share = partial(ppo_loss, turns=sum(len(item.turns) for item in part), seen=seen)
            steps.append(learner.measure(part, share) if warm else learner.step(part, share, factor))
        # 4. fit critic and baseline
        critic.remember(torch.cat([states for states, _ in seen]), torch.cat([targets for _, targets in seen]))
        rows.append(
            {
                "won": float(np.mean([episode.won for episode in played])),
                "lost": float(np.mean([episode.outcome is Outcome.LOST for episode in played])),
                "steps": float(np.mean([episode.steps for episode in played])),
                "entropy": float(np.mean([row["entropy"] for row in steps])),
                "gap": steps[0]["gap"],
                "kl": steps[-1]["kl"],
                "clipped": steps[-1]["clipped"],
                "critic explains": explained_variance(played, CFG),
                "baseline explains": explained_variance(played, CFG, values),
                "value_loss": critic.fit(),
                "baseline_loss": baseline.learn(played, returns),
            }
        )
    actor.sync()
    if watch is not None:
        watch(iterations)
    return rows


# %% [markdown]
# **The run.** Every ten iterations the policy plays dev games, which choose the weights that are kept.


# %%
def train_seats(iteration: int):
    """The games, which tell the baseline their true state. Foods are renamed in most episodes."""
    return training_games(games, CFG.rename, f"ppo/{iteration}/names", knows)


ITERATIONS = size(40, 3)
curve: list[tuple[int, float, float, float]] = []
best: dict = {"won": -1.0}
curve_tasks = dev_tasks[::2]  # these choose the weights
# and these measure them: the best of many looks better than it is on the games that chose it
UNCHOSEN = slice(1, None, 2)


def watch(iteration: int) -> None:
    """Play dev games greedily and keep the best weights. The clone itself is a candidate, at iteration 0."""
    results = evaluate(policy, games, curve_tasks, Decoding(greedy=True), context=CONTEXT)
    curve.append((iteration, *rate(results)))
    if curve[-1][1] >= best["won"]:  # of equals the latest: they have learnt from more games
        best.update(won=curve[-1][1], iteration=iteration, weights=learnt())
    print(f"iteration {iteration:>3}: {curve[-1][1]:.0%} of {len(results)} dev games won, greedy", flush=True)


start = time.monotonic()
put_back(sft_weights)
ppo_log = train_ppo(model, actor, policy, train_seats, train_tasks, ITERATIONS, "ppo", watch)
print(f"{time.monotonic() - start:.0f} s")
recent = ppo_log[-10:]
for what in ("gap", "critic explains", "baseline explains"):
    print(f"{what:<18} {np.mean([row[what] for row in recent]):7.4f}   mean of the last {len(recent)} iterations")
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2))
for axis, what, title in (
    (left, "kl", "KL(old, new), last minibatch"),
    (right, "clipped", "Ratios outside of the band"),
):
    axis.plot([row[what] for row in ppo_log], color=BLUE)
    axis.set(xlabel="iteration", title=title, ylim=(0, None))
left.set(ylabel="nats per turn")
right.set(ylabel="share of turns")
plt.show()

# %% [markdown]
# `gap` (nats per turn) should be near 0: training reads what was played, up to the number format in which the actor
# plays. The last two lines are explained shares of the variance of returns: 1 for a perfect baseline, below 0 for one that is worse than a
# constant. Their difference is what knowing the game and its true state adds to the transcript. In the run on file the critic
# explains 8 % of the variance and the baseline 44 %: what decides a return, how far away the food is, mostly does not show in
# the text. So do not expect much of single values of the critic, such as those of section 11: some exceed what the game can still pay.
#
# **What should the curves look like?** In the first policy iteration the policy moves most: in the run on file `kl` reaches 0.11, and a quarter of the last minibatch's turns
# are outside of the band. Then both fall with the learning rate. If `kl` stays above 0.1, halve the learning rate. Games lost rise at first, because the policy tries cuts, and fall later. Entropy falls slowly; if it is
# below 0.2 from the start, PPO finds little to choose from. A critic or baseline that explains less than 0 is worse than a constant. The library's
# [metrics](../docs/metrics.md#what-a-healthy-run-looks-like) show a healthy training beside one that is too sure, and what to change first.

# %% [markdown]
# <a name="improved"></a>
# ## 11 The improved agent
#
# The left figure holds the two curves that first attempts confuse: success while *collecting* (sampled, train games,
# every iteration) and success in *evaluation* (greedy, dev games, with its interval). The right figure shows how much
# the policy still explores (entropy), how many steps a game takes, and how many games are lost to a mistake during exploration.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
left.plot(
    [row["won"] for row in ppo_log],
    color=ORANGE,
    linestyle="--",
    linewidth=1.2,
    label="collection: train, sampled",
)
places, wins, lows, highs = (np.array(column) for column in zip(*curve, strict=True))
left.errorbar(
    places, wins, [wins - lows, highs - wins], color=BLUE, marker="o", capsize=3, label="evaluation: dev, greedy"
)
left.axhline(rate(gold_dev)[0], color="black", linestyle=":", label="the teacher")
left.set(xlabel="iteration", ylabel="games won", ylim=(0, 1), title="Learning")
left.legend(fontsize=8.5)
right.plot([row["entropy"] for row in ppo_log], color=GREEN, label="entropy per turn (nats)")
right.plot([row["steps"] / LIMIT for row in ppo_log], color=PINK, linestyle="-.", label="steps per game / limit")
right.plot([row["lost"] for row in ppo_log], color=GREY, linestyle="--", label="games lost")
right.set(xlabel="iteration", title="Exploration, length, losses", ylim=(0, None))
right.legend(fontsize=8.5)
plt.show()

# %%
put_back(best["weights"])
ppo_results = {
    kind: evaluate(policy, games, dev_tasks, Decoding(greedy=kind == "greedy"), context=CONTEXT)
    for kind in ("greedy", "sampled")
}
bars(
    {
        "gold": gold_dev,
        "SFT\ngreedy": sft_results["greedy"],
        "PPO\ngreedy": ppo_results["greedy"],
        "PPO\nsampled": ppo_results["sampled"],
    },
    f"{len(dev_tasks)} dev games",
)
print(f"weights of iteration {best['iteration']}, the best of {len(curve)} evaluations on every other dev game:\n")
print(f"{'':<14}{'games that chose':<22}the others")
for label, played in (
    ("PPO, greedy", ppo_results["greedy"]),
    ("PPO, sampled", ppo_results["sampled"]),
    ("SFT, greedy", sft_results["greedy"]),
    ("teacher", gold_dev),
):
    halves = [rate(played[half]) for half in (slice(0, None, 2), UNCHOSEN)]
    chose, others = (f"{won:.0%} [{low:.0%}, {high:.0%}]" for won, low, high in halves)
    print(f"{label:<14}{chose:<22}{others}")
print()
print(
    "on the others, PPO less SFT, greedy: ",
    difference(ppo_results["greedy"][UNCHOSEN], sft_results["greedy"][UNCHOSEN]),
)
print("on the others, PPO less the teacher: ", difference(ppo_results["greedy"][UNCHOSEN], gold_dev[UNCHOSEN]))

# %% [markdown]
# **Which of the two numbers is the agent's?** In the run on file the greedy policy wins 89 % of the games that chose its weights
# (90 % in the curve: played in another batch, one of them ended differently) and 90 % of the others. Report the second, whichever is higher. On average the first is too high, by *selection bias*: five evaluations competed on these games,
# and the best of several noisy numbers owes some of its lead to noise. A single run can hide this, because 100 games say little and the games
# differ: the intervals overlap almost entirely, and the teacher, for whom nothing was chosen, wins 32 % of the first games and 39 % of the others.
# Nor is the bias large where the evaluations rise in order, as here from 16 to 90 %: the last weights would have been taken without a competition.

# %% [markdown]
# What has it learnt? Compare its first actions with the teacher's, and see what it weighs at each turn, along with the
# critic's value (with the bonus, a win returns up to 2, less the discount).

# %%
put_back(best["weights"])
episode = next((e for e in ppo_results["greedy"] if e.won), ppo_results["greedy"][0])
for number, turn in enumerate(episode.turns, 1):
    weighed = policy.weigh(turn, episode.segments[turn.segment].ids, 1.0)[:3]
    others = ", ".join(f"{action} {probability:.0%}" for action, probability in weighed)
    print(f"{number:>2} > {turn.action:<32} V {turn.value:.2f}   {others}")
print(episode.outcome)


def habits(episodes, verbs) -> list[float]:
    """Uses per game of actions that begin with each of `verbs`."""
    return [float(np.mean([sum(t.action.startswith(verb) for t in e.turns) for e in episodes])) for verb in verbs]


verbs = ("look", "take cookbook", "read", "close", "open", "move", "take", "cook", "prepare")
figure, axis = plt.subplots(figsize=(8.5, 3.4))
for shift, (label, episodes, colour, hatch) in enumerate(
    (
        ("teacher", gold_dev, GREY, ""),
        ("SFT, sampled", sft_results["sampled"], PINK, "xx"),
        ("SFT, greedy", sft_results["greedy"], ORANGE, "//"),
        ("PPO, greedy", ppo_results["greedy"], BLUE, ".."),
    )
):
    axis.bar(
        np.arange(len(verbs)) + 0.21 * shift,
        habits(episodes, verbs),
        0.2,
        label=label,
        color=colour,
        hatch=hatch,
        edgecolor="black",
    )
axis.set(
    xticks=np.arange(len(verbs)) + 0.32,
    xticklabels=verbs,
    ylabel="uses per game",
    title="What PPO does less often, and more",
)
axis.legend()
plt.show()

# %% [markdown]
# <a name="retrieval"></a>
# ## 12 RL with retrieval
#
# A transcript ends with its game, and what was found out is lost. Here the agent gets a **memory**, which keeps a note of each
# earlier episode: its actions in order, a `+` after those that scored, and how it ended. When a game begins,
# BM25 (Robertson and Zaragoza 2009) finds the note whose game began most alike. The note is written under the task, at
# the head of the transcript. Nothing else changes: ids are still only appended, and policy and loss are the same.
#
# In the kitchen such notes brought nothing that could be measured: who reads the cookbook and the rooms again needs none
# ([experiment](../docs/experiments.md#2026-11-30--does-a-note-help-in-the-kitchen)). So here is a game in which a first visit finds out
# what a second one cannot see: a coin lies in one of eleven rooms, and the second time there are only eight steps.
#
# **The question**, made testable: does a note about the first visit help? The control is a model that learns from the same lessons,
# with the same number of PPO iterations on the same games, but is told nothing. A second control is the placebo: the trained model with notes about *other*
# games only. A third one learns nothing: it does what its note says, word by word.

# %%
from collections import Counter

from grue.experiments.second_visit.players import Follower
from grue.experiments.second_visit.visits import lessons as ways_again
from grue.retrieval.memory import Memories, Memory, Remembering, remembered, words

MAZE, STEPS, FIRST_STEPS = "numLocations=11,includeDoors=0", 8, 20
mazes = [make("coin", MAZE) for _ in range(SLOTS)]
maze_tasks = {
    fold: tasks("coin", MAZE, fold, STEPS, count=size(count, 12)) for fold, count in (("train", 600), ("dev", 200))
}
explorer = teacher("explore", mazes[0])  # knows what it has seen, and no more
first_visits = {
    fold: [play(mazes[0], replace(task, limit=FIRST_STEPS), explorer) for task in each]
    for fold, each in maze_tasks.items()
}
memories = Memories(first_visits["train"] + first_visits["dev"], places=25)
visit = next(each for each in first_visits["train"] if each.won and each.steps > 6)
print("first visit:", ", ".join(turn.action for turn in visit.turns))
begins = visit.turns[0].observation.text
(note,) = memories.told(visit.task, begins, 1, own=True)
print(f"note, of game {note.task.seed}, found for game {visit.task.seed}: {note.text}")
print(f"the first visit finds the coin in {np.mean([each.won for each in first_visits['dev']]):.0%} of dev games")
memory = Memory(first_visits["train"])
held = Counter(word for found in memory.notes for word in set(words(found.begins)))
rare = min(words(begins), key=lambda word: held[word])
print(
    f'of {len(memory)} notes {held["kitchen"]} are of games that begin with a text that holds "kitchen", {held[rare]} "{rare}"'
)

# %% [markdown]
# A note leaves out detours: where a room is seen again, what led back to it is gone. Many mazes begin with the same words, so each player here
# remembers 25 places, not 600, and a note is looked for among these.
#
# **Exercise 6.** BM25 weighs a word by how rare it is. Notes are found by how their games begin. If $n$ of $N$ notes are about games
# whose first text contains the word, its weight is $\ln\big(1 + \frac{N - n + 0.5}{n + 0.5}\big)$. Why does the word "kitchen" hardly
# count here? Write the weight, and try it on the two words that are counted above.


# %%
def word_weight(notes: int, with_word: int) -> float:
    return None  # your code


# %%
def check_6(answer) -> bool | None:
    found = answer(100, 100)
    return None if found is None else bool(abs(found - np.log(1 + 0.5 / 100.5)) < 1e-9 and answer(100, 1) > 4)


check(6, check_6(word_weight))

# %% [markdown]
# **Lessons.** What should a clone learn, before PPO? Wins that were played without looking at the note would teach it to ignore notes. So a lesson
# is the way of a first visit that found the coin, gone again without its detours, with the note that the memory finds for this game in front. Mostly the note says
# just what is done. Where it is about another game, the lesson shows that, too. PPO then has to find out when a note can be trusted, and what to do when it cannot.

# %%
ways = ways_again(mazes[0], first_visits["train"], STEPS)
taught = [remembered(way, memories) for way in ways]
print(f"{len(taught)} lessons of {np.mean([each.steps for each in taught]):.1f} steps")
RETRIEVAL_ITERATIONS = size(20, 2)
arms = {}
for label, seats, shown in (
    ("control", mazes, ways),
    ("notes", [Remembering(maze, memories) for maze in mazes], taught),
):
    arm_model = deepcopy(model)
    arm_model.load_state_dict(base_weights, strict=False)
    arm_actor = Actor(arm_model, "auto")
    arm_policy = make_policy(arm_actor.model, encoder)
    items = samples([tokenise(episode, arm_policy) for episode in shown])
    for reading in range(size(3, 1)):
        fine_tune(arm_model, items, seed=f"retrieval/{reading}")
    arm_log = train_ppo(
        arm_model,
        arm_actor,
        arm_policy,
        lambda _, seats=seats: seats,
        maze_tasks["train"],
        RETRIEVAL_ITERATIONS,
        "retrieval",
        demo_steps={},
    )
    arms[label] = arm_policy
    won = [np.mean([row["won"] for row in rows]) for rows in (arm_log[:3], arm_log[-3:])]
    print(f"{label:>9}: wins in the first three iterations of PPO {won[0]:.0%}, in the last three {won[1]:.0%}")


# %%
def second_visits(arm: str, seats) -> list:
    return evaluate(arms[arm], seats, maze_tasks["dev"], Decoding(greedy=True), context=CONTEXT)


follower = Follower(memories)
second = {
    "control": second_visits("control", mazes),
    "follows\nthe note": [play(mazes[0], task, follower) for task in maze_tasks["dev"]],
    "note of\nother games": second_visits("notes", [Remembering(maze, memories, own=False) for maze in mazes]),
    "note of the\nfirst visit": second_visits("notes", [Remembering(maze, memories) for maze in mazes]),
}
bars(second, f"Second visit to {len(maze_tasks['dev'])} dev games")
told = [memories.told(each.task, each.turns[0].observation.text, 1, own=True)[0] for each in first_visits["dev"]]
share = np.mean([note.task == each.task for note, each in zip(told, first_visits["dev"], strict=True)])
print(f"the note found is of the very game in {share:.0%} of the dev games")
for label in list(second)[:-1]:
    apart = difference(second["note of the\nfirst visit"], second[label])
    print(f"note of the first visit less {' '.join(label.split()) + ':':<22}", apart)

# %% [markdown]
# Against the control, which has had the same lessons, the notes count. Against the placebo, with the same weights, only *what the note says* counts. In the run on file
# the note of the first visit is worth 27.5 points (19.5 to 36) against the control and 37 against notes of other games, which mislead a policy that has learnt to trust notes. An interval that contains 0 says
# that this number of games cannot tell.
#
# Word by word would have been better still, by 10 points: a few passes and 20 iterations do not teach this small model to copy without mistakes, and it has met each
# train maze several times, so it can remember ways instead of reading notes. `grue experiment second-visit` begins with a policy that knows the game, trains longer and several times, and turns and mirrors
# the mazes, so that only reading helps: then the policy does about as well as word by word ([retrieval](../docs/retrieval.md)).
#
# Note what this does **not** claim. The first visit is a visit to a game of the dev fold: it is play, not training,
# and no weight has seen it, but it is an extra attempt. Comparing a second attempt with notes to a first attempt
# without would be unfair; that is why the controls exist. And notes are text from a game, as untrusted as all such text:
# the policy can only take valid actions, whatever a note says.

# %% [markdown]
# <a name="discussion"></a>
# ## 13 Experiments and discussion
#
# ### 13.1 Why does a policy do worse in evaluation than in collection?
#
# The two curves of section 11 differ for several reasons at once: one samples and the other is greedy, and they play different
# games. Other pipelines add defects of their own. Here we test some suspects, each alone, on the agent
# that we have just trained and on the dev games that did not choose its weights. The first two concern what is measured, the next three the
# prompts, and the last what may be written. Positive numbers are costs.

# %%
from grue.experiments.eval_gap.defects import ExtraStep
from grue.experiments.eval_gap.player import choosing, play_prompts, writing
from grue.experiments.eval_gap.prompts import Style

GAP_TASKS, greedy = dev_tasks[UNCHOSEN], ppo_results["greedy"][UNCHOSEN]
train_again = evaluate(
    policy, games, train_tasks[:: max(1, len(train_tasks) // len(dev_tasks))], Decoding(greedy=True), context=CONTEXT
)


def prompted(style: Style, answer=None):
    """Dev games played with prompts that are rebuilt at every step."""
    return play_prompts(
        policy, games, GAP_TASKS, style, answer or choosing(policy, Decoding(greedy=True)), context=CONTEXT
    )


suspects = {
    "actions are sampled": ppo_results["sampled"][UNCHOSEN],
    "one step more than the limit (the stock wrapper)": evaluate(
        policy, [ExtraStep(g) for g in games], GAP_TASKS, Decoding(greedy=True), context=CONTEXT
    ),
    "the transcript is tokenised again each step": prompted(Style(retokenise=True)),
    "a window of 6 steps": prompted(Style(window=6)),
    "the same, the task line lost at step 6": prompted(Style(window=6, task_line=False)),
    "actions are written freely, greedy": prompted(Style(), writing(policy, Decoding(greedy=True))),
}
table = f"| suspect | won | cost on the same {len(GAP_TASKS)} games |\n|---|---:|---:|\n"
table += f"| none: greedy, dev | {rate(greedy)[0]:.0%} | |\n"
for label, played in suspects.items():
    table += f"| {label} | {rate(played)[0]:.0%} | {difference(greedy, played)} |\n"
display(Markdown(table))
on_train, on_dev = rate(train_again), rate(greedy)
print(f"{len(train_again)} train games, greedy: {on_train[0]:.0%} [{on_train[1]:.0%}, {on_train[2]:.0%}]")
print(
    f"{len(GAP_TASKS)} dev games, greedy:   {on_dev[0]:.0%} [{on_dev[1]:.0%}, {on_dev[2]:.0%}]   (other games: not paired)"
)

# %% [markdown]
# **How to read it.** Changed prompts and free writing cost most: with a window the recipe, read long ago, is no longer in the prompt; and PPO has trained how
# valid actions compare with each other, while nothing in its loss keeps their texts likely over the whole vocabulary. Sampling costs something, too, since the entropy bonus keeps the policy
# trying other actions, which greedy play ignores: so it makes *collection* look worse than evaluation. One step more only makes the game longer; the agent is no better. The last
# two lines come from different games, of which the train games are the harder ones (of all of them gold wins 19 %, of all dev games 35 %): they neither show a gap nor exclude one.

# %% [markdown]
# ### 13.2 The whole list
#
# The table above is one agent of one seed, and an interval that contains 0 says that this number of games cannot tell. One command
# runs the whole list, including suspects that need training runs of their own (demonstrations cut at the limit, GAE without bootstrap, dropout in
# the update, KL to the wrong policy, choosing the checkpoint on test). [eval-gap](../docs/eval-gap.md) says what each contrast is
# and how it is measured.
#
# ```sh
# for seed in 0 1 2 3 4; do grue run --seed $seed --out runs/s$seed; done
# grue experiment eval-gap runs/s? games=500 --no-training   # with one run and without the option: short trainings too
# ```
#
# Measured this way on five trainings of the main job and 500 dev games, the answer is: in a repaired pipeline the policy is *not* worse in
# evaluation. It won 90.3 % of sampled train games, 95.5 % of dev games played greedily, some of which had chosen the weights, and 96.0 % of
# test games. All prompt and sampling defects at once left 17.7 %. The whole table, with
# intervals, is in [eval-gap](../docs/eval-gap.md), which also says what can be done about free writing.

# %% [markdown]
# ### 13.3 The last word: the test fold
#
# All choices above were made on dev games. Now we play games of the test fold, once.

# %%
test_tasks = spread("test", size(300, 12))
put_back(best["weights"])
test_results = {
    "gold": [play(game, task, gold) for task in test_tasks],
    "PPO\ngreedy": evaluate(policy, games, test_tasks, Decoding(greedy=True), context=CONTEXT),
    "PPO\nsampled": evaluate(policy, games, test_tasks, Decoding(), context=CONTEXT),
}
put_back(sft_weights)
test_results["SFT\ngreedy"] = evaluate(policy, games, test_tasks, Decoding(greedy=True), context=CONTEXT)
put_back(best["weights"])
bars(test_results, f"{len(test_tasks)} test games")
print("PPO less SFT:    ", difference(test_results["PPO\ngreedy"], test_results["SFT\ngreedy"]))
print("PPO less teacher:", difference(test_results["PPO\ngreedy"], test_results["gold"]))
print(
    "lost to a mistake:",
    {
        name.replace("\n", " "): f"{np.mean([e.outcome is Outcome.LOST for e in played]):.0%}"
        for name, played in test_results.items()
    },
)

# %% [markdown]
# ### 13.4 What to take home
#
# - **The teacher's steps, not its knowledge, are the limit.** Cloning copies the waste; play removes it.
# - **Weigh what is meant.** A constraint applied token by token can turn a good intention into a wrong action.
# - **Exploration has to make sense.** A little probability everywhere is not enough: what follows a shortcut has to work too. The
#   replays with left-out steps are there for this ([the comparison](../docs/results.md#what-the-parts-of-cooking16-are-worth)).
# - **And it has to last.** What a policy no longer tries it cannot learn, however long it trains
#   ([measured](../docs/experiments.md#2026-11-27--what-a-sure-policy-no-longer-tries)).
# - **A baseline may know what the policy must not**, as long as you say so and measure the policy without it.
# - **Credit per turn.** Between the tokens of an action nothing happens.
# - **Look at tokens and at gaps.** Most bugs of such systems are visible in the coloured transcript, or in a `gap` that is not 0.
# - **One training run is one draw.** All intervals here are over games. Another seed gives another agent; for a claim, train several.
#
# The library's own run of this method (`grue run`, with more games and iterations, and three folds side by side) is in the
# [README](../README.md).

# %% [markdown]
# <a name="limitations"></a>
# ## 14 Limitations and societal impact
#
# **Limits of the evidence.** There is one game family, written by one generator, with templates that a small model can learn
# by heart. Recipes are kept apart between folds; templates are not. The base has seen train recipes of this very
# family, which no general model has. In training the baseline asks a simulator for the true game state, and a conversation
# with a person offers none. There is one seed. The valid actions are given: a policy that must write its own has a
# harder task. Nothing here shows that what is learnt transfers to people or to open text.
#
# **What could go wrong beyond games.** The same loop trains agents that act on people through language, where a score
# is easily mistaken for a purpose. An agent that maximises sales or engagement learns whatever wording achieves it, and PPO
# improves *beyond* its human teacher in directions that nobody demonstrated. Audit rewards as you audit code.
# Compare policies with their demonstrations where it matters (as in the figure of section 11). Limit actions to a
# list that people wrote, which this policy never leaves. Treat retrieved text as untrusted. Language models bring the
# biases of their data into every game. Cost counts too: the run above fits a laptop.
#
# **How to address it.** Use several seeds and other families; reword observations and actions; hold out a
# generator; red-team the reward before training; keep logs of whole episodes, as the library does.

# %% [markdown]
# <a name="lora"></a>
# ## 15 Quantization and LoRA
#
# Training a model takes several times the memory of its weights: gradients and the two moments of Adam come on top, in 32
# bits. Two ideas bring large models to a small GPU; the table below says how much they save. The runs above used neither: our
# base is so small that all of it was trained.
#
# **LoRA** (Hu et al. 2022) freezes a weight matrix $W \in \mathbb{R}^{m \times n}$ and learns a low-rank change,
# $W + \frac{\alpha}{r} B A$ with $B \in \mathbb{R}^{m \times r}$ and $A \in \mathbb{R}^{r \times n}$. $B$ starts at
# zero, so nothing changes at first. Gradients and moments are needed for $r(m+n)$ numbers instead of $mn$.
#
# **Quantization** (QLoRA; Dettmers et al. 2023) stores the frozen weights in 4 bits. Each block of 64 weights shares one scale,
# and each weight becomes one of 16 levels that fit a normal distribution (NF4). Products are still computed in 16
# bits.


# %%
def memory_gb(parameters: float, learned: float, bits: float, embeddings: float) -> float:
    """Weights, plus a gradient and two moments in 32 bits for each learned one. Activations come on top.

    Embeddings and output layer are never stored in fewer than 16 bits.
    """
    weights = (parameters - embeddings) * bits + embeddings * max(16, bits)
    return (weights / 8 + learned * 12 + (learned * 4 if bits < 32 else 0)) / 1e9


rows = []
for label, parameters, matrices, width, vocabulary in (
    ("embedded base", count, 28, 256, len(tokenizer)),
    ("1.3 B model", 1.3e9, 144, 2048, 50_000),
    ("8 B model", 8e9, 224, 4096, 2 * 128_000),  # its output layer has weights of its own
):
    for rank in (4, 16):
        adapter = matrices * rank * 2 * width  # as if matrices were square; those of the MLP are wider: up to half more
        ways = ((parameters, 32), (adapter, 16), (adapter, 4.5))
        memory = [memory_gb(parameters, learned, bits, vocabulary * width) for learned, bits in ways]
        rows.append((label, rank, adapter, memory))
table = "| model | LoRA rank | adapter, M | all weights learn, GB | LoRA, 16 bits | LoRA, 4 bits |\n"
table += "|---|---:|---:|---:|---:|---:|\n"
for label, rank, adapter, memory in rows:
    table += f"| {label} | {rank} | {adapter / 1e6:.2f} | " + " | ".join(f"{gb:.2f}" for gb in memory) + " |\n"
display(Markdown(table))

# %% [markdown]
# These are estimates from a formula. For our small model we can look at the real thing: the number of adapter parameters, and
# what 4 bits do to the policy that PPO has made, on its own games. The function below quantizes and restores the weights
# in place. A 4-bit model computes with such restored weights.

# %%
from grue.models.adapter import with_adapter

adapted = with_adapter(deepcopy(lm), ModelConfig(adapter="lora", lora_rank=4, lora_alpha=32))
trainable = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
print(f"LoRA of rank 4: {trainable:,} of {count:,} parameters learn ({trainable / count:.1%})")

LEVELS = "-1 -.6962 -.5251 -.3949 -.2844 -.1848 -.0911 0 .0796 .1609 .2461 .3379 .4407 .5626 .7230 1"
NF4 = torch.tensor([float(level) for level in LEVELS.split()], device=next(lm.parameters()).device)


def through_4_bits(weight: torch.Tensor, block: int = 64) -> torch.Tensor:
    """`weight` as NF4 stores it: one scale per block of 64, and for each number the nearest of 16 levels."""
    blocks = weight.reshape(-1, block)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12)
    nearest = (blocks / scale).unsqueeze(-1).sub(NF4).abs().argmin(-1)
    return (NF4[nearest] * scale).reshape(weight.shape)


quantized = PolicyModel(deepcopy(lm))
with torch.no_grad():
    for name, weight in quantized.lm.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            weight.copy_(through_4_bits(weight))

everything = Encoder(tokenizer, PRESET.policy.model_copy(update={"min_p": 0.0}))  # no action is left out
full, coarse = make_policy(model, everything), make_policy(quantized, everything)
divergences, turned = [], 0
for episode in ppo_results["greedy"][:4]:
    for turn in episode.turns:
        ids = episode.segments[turn.segment].ids
        p, q = (dict(one.weigh(turn, ids, 1.0)) for one in (full, coarse))
        divergences.append(sum(p[action] * np.log(p[action] / max(q[action], 1e-12)) for action in p if p[action] > 0))
        turned += max(p, key=p.get) != max(q, key=q.get)
print(f"KL(policy || 4-bit policy): mean {np.mean(divergences):.4f}, largest {max(divergences):.4f} nats a turn")
print(f"another likeliest action in {turned} of {len(divergences)} turns")

# %% [markdown]
# What changes for you: adapters want a learning rate of a few 1e-4, whereas training all weights of a large model takes about
# 1e-5 (our small one takes a few 1e-4 anyway). Only the adapter is saved to disk, and the reference policy is the
# same model with another adapter. What does not change: the loop.

# %% [markdown]
# <a name="next"></a>
# ## 16 Next steps
#
# **A GPU and a real language model.** A GPU is used where torch finds one. In this notebook, change the model and let
# only adapters learn:
#
# ```python
# config = ModelConfig(name="Qwen/Qwen3-0.6B", quantize="nf4", lora_rank=16, context=2048)  # pip install -e ".[qlora]"
# MICRO_TOKENS = 2048
# ```
#
# These two lines replace those that set `config` and `MICRO_TOKENS` in section 4.3. An ordinary tokenizer needs several
# times as many tokens for a game as the base's own, hence the longer context. Leave out the code of section 15, which adapts
# and quantizes a second time. Set `SLOTS` to 16. `fine_tune` and `train_ppo` can stay as they are.
#
# Do not expect it to win, though. Everything above suits a model that has read this very game. The one model that was downloaded
# and trained on a game as long as this one, SmolLM2 with 135 million parameters, won no dev game after SFT. It learnt smaller
# kitchens, with other settings: `choose` instead of `aligned` (why:
# [what an ordinary model makes of a choice](../docs/models.md#what-an-ordinary-model-makes-of-a-choice)), names that are not
# exchanged, 200 demonstrations read twice in batches of 8, and its own learning rates. Two presets hold these settings, so begin on
# the command line, where no code has to be changed:
#
# ```sh
# grue run kitchen-lora model.name=Qwen/Qwen3-0.6B model.quantize=nf4 --out runs/qwen3
# grue run twc-lora model.name=Qwen/Qwen3-0.6B model.quantize=nf4 --out runs/qwen3-twc    # a shorter game
# ```
#
# What SmolLM2 won with them is in [the results](../docs/results.md#a-downloaded-model). This path of the notebook has not been run
# on a GPU.
#
# **Things to try.** Leave `knows` out of `train_seats`: what does the agent learn without being told? Put `"gamma": 0.93` or 1.0
# into the update of `CFG`: how many games are lost, and does it still hurry? Set `SMOOTHING = 0`, or leave the replays out. Use
# `explore` as the teacher: what is left to learn? Retrieve two notes instead of one. On the command line, compare with
# `grue run policy.kind=choose`, or take another family, such as `coin` or `twc`. For some of these the library has answers, of its
# larger main job ([the worth of each part](../docs/results.md#what-the-parts-of-cooking16-are-worth)); expect one training to differ
# from the next by several points. Read
# [the method](../docs/method.md), then [`train/ppo.py`](../src/grue/train/ppo.py), which is this loop with logging,
# checkpoints and resuming.

# %% [markdown]
# <a name="solutions"></a>
# ## 17 Solutions


# %%
def solution_1(token_log_probs: list[list[float]]) -> float:
    texts = [np.exp(sum(tokens)) for tokens in token_log_probs]
    return float(texts[0] / sum(texts))


def solution_2(written_by: list[str]) -> list[int]:
    # the prediction of a token is found one position before it
    return [place - 1 for place, who in enumerate(written_by) if who == "teacher"]


def solution_3(logits_LV: torch.Tensor, ids: list[int], first: int) -> float:
    log_probs_LV = logits_LV.log_softmax(-1)
    return float(sum(log_probs_LV[place - 1, ids[place]] for place in range(first, len(ids))))


def solution_4(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    advantages, following, running = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] + gamma * following - values[t] + gamma * lam * running
        advantages[t], following = running, values[t]
    return advantages


def solution_5(log_probs_T, old_T, advantages_T, clip: float = 0.2):
    ratio_T = (log_probs_T - old_T).exp()
    return -torch.minimum(ratio_T * advantages_T, ratio_T.clamp(1 - clip, 1 + clip) * advantages_T)


def solution_6(notes: int, with_word: int) -> float:
    # every game begins with a text that holds "kitchen": n = N, and the weight is near 0
    return float(np.log(1 + (notes - with_word + 0.5) / (with_word + 0.5)))


solved = (
    check_1(solution_1),
    check_2(solution_2),
    check_3(solution_3),
    check_4(solution_4),
    check_5(solution_5),
    check_6(solution_6),
)
for number, found in enumerate(solved, 1):
    check(number, found)
    assert found is True

# %%
print(f"the whole notebook: {(time.monotonic() - STARTED) / 60:.1f} minutes")

# %% [markdown]
# <a name="references"></a>
# ## References
#
# - Carta, Romac, Wolf, Lamprier, Sigaud and Oudeyer 2023. *Grounding large language models in interactive environments with online reinforcement learning* (GLAM). ICML. [arXiv:2302.02662](https://arxiv.org/abs/2302.02662)
# - Côté et al. 2019. *TextWorld: a learning environment for text-based games.* [arXiv:1806.11532](https://arxiv.org/abs/1806.11532)
# - Dettmers, Pagnoni, Holtzman and Zettlemoyer 2023. *QLoRA: efficient finetuning of quantized LLMs.* NeurIPS. [arXiv:2305.14314](https://arxiv.org/abs/2305.14314)
# - Feng, Xue, Liu and An 2025. *Group-in-group policy optimization for LLM agent training* (GiGPO). [arXiv:2505.10978](https://arxiv.org/abs/2505.10978)
# - Hausknecht, Ammanabrolu, Côté and Yuan 2020. *Interactive fiction games: a colossal adventure* (Jericho). AAAI. [arXiv:1909.05398](https://arxiv.org/abs/1909.05398)
# - Hu et al. 2022. *LoRA: low-rank adaptation of large language models.* ICLR. [arXiv:2106.09685](https://arxiv.org/abs/2106.09685)
# - Jansen and Côté 2023. *TextWorldExpress: simulating text games at one million steps per second.* EACL demos. [arXiv:2208.01174](https://arxiv.org/abs/2208.01174)
# - Kaelbling, Littman and Cassandra 1998. *Planning and acting in partially observable stochastic domains.* Artificial Intelligence 101.
# - Laskey, Lee, Fox, Dragan and Goldberg 2017. *DART: noise injection for robust imitation learning.* CoRL.
# - Nguyen, Baker, Neo, Roush, Kirsch and Shwartz-Ziv 2024. *Turning up the heat: min-p sampling for creative and coherent LLM outputs.* [arXiv:2407.01082](https://arxiv.org/abs/2407.01082)
# - Ouyang et al. 2022. *Training language models to follow instructions with human feedback.* NeurIPS. [arXiv:2203.02155](https://arxiv.org/abs/2203.02155)
# - Park, Wang, Berg-Kirkpatrick, Polikarpova and D'Antoni 2024. *Grammar-aligned decoding.* NeurIPS. [arXiv:2405.21047](https://arxiv.org/abs/2405.21047)
# - Pinto, Andrychowicz, Welinder, Zaremba and Abbeel 2018. *Asymmetric actor critic for image-based robot learning.* RSS. [arXiv:1710.06542](https://arxiv.org/abs/1710.06542)
# - Pomerleau 1989. *ALVINN: an autonomous land vehicle in a neural network.* NeurIPS.
# - Robertson and Zaragoza 2009. *The probabilistic relevance framework: BM25 and beyond.* Foundations and Trends in Information Retrieval 3(4).
# - Ross, Gordon and Bagnell 2011. *A reduction of imitation learning and structured prediction to no-regret online learning* (DAgger). AISTATS.
# - Schulman, Moritz, Levine, Jordan and Abbeel 2016. *High-dimensional continuous control using generalized advantage estimation.* ICLR. [arXiv:1506.02438](https://arxiv.org/abs/1506.02438)
# - Schulman, Wolski, Dhariwal, Radford and Klimov 2017. *Proximal policy optimization algorithms.* [arXiv:1707.06347](https://arxiv.org/abs/1707.06347)
# - Schulman 2020. *Approximating KL divergence.* [joschu.net/blog/kl-approx.html](http://joschu.net/blog/kl-approx.html)
# - Szegedy, Vanhoucke, Ioffe, Shlens and Wojna 2016. *Rethinking the Inception architecture for computer vision.* CVPR.
# - Tan, Zhang, Liu, Zheng, Wang and An 2024. *True knowledge comes from practice: aligning LLMs with embodied environments via reinforcement learning* (TWOSOME). ICLR. [arXiv:2401.14151](https://arxiv.org/abs/2401.14151)
# - Wilson 1927. *Probable inference, the law of succession, and statistical inference.* JASA 22.
# - Zhou, Zanette, Pan, Levine and Kumar 2024. *ArCHer: training language model agents via hierarchical multi-turn RL.* ICML. [arXiv:2402.19446](https://arxiv.org/abs/2402.19446)
# - Ziegler et al. 2019. *Fine-tuning language models from human preferences.* [arXiv:1909.08593](https://arxiv.org/abs/1909.08593)
