"""What the help of some verbs lists below the options. A test checks these texts against the names that exist.

They are written out, as the modules with the names are slow to import. `\\b` keeps a paragraph's lines as they are.
"""

PRESETS = """\b
Presets:
  cooking16 (the default), smoke (the same in minutes), toy (a minute),
  cooking1, coin, twc, mapreader, arithmetic, sorting, simonsays,
  simonsays-memory, peckingorder, textworld-cooking; twc-lora and
  kitchen-lora, for models of your own (model.name); and other, for any
  game of game.name.

\b
Presets that measure a model on the tasks of TALES, without training:
  tales-cookingworld, tales-twc, tales-coin, tales-arithmetic,
  tales-mapreader, tales-sorting, tales-peckingorder,
  tales-simonsays-10, tales-simonsays-50, tales-simonsays-100,
  tales-simonsays-memory-10, tales-simonsays-memory-10-verbose,
  tales-simonsays-memory-50, tales-simonsays-memory-50-verbose,
  tales-simonsays-memory-100, tales-simonsays-memory-100-verbose

Every setting is in the config.yaml of a run, with its meaning."""

TEACHERS = """\b
Teachers:
  gold         the game's own solution: the default
  gold-pruned  the same without its idle steps
  explore      knows what it has seen, as a policy does:
               cookingworld, coin, mapreader, alfworld
  optimal      knows hidden things too:
               cookingworld, textworld, babyai, alfworld, toy
  random       any valid action"""

CONTRASTS = """\b
Contrasts of eval-gap:
  remaining, sampled, train-to-dev, train-to-test, layouts, recipes,
  extra-step, few-games, window, task-line, retokenised, truncation-side,
  free-greedy, free-sampled, top-k-free, top-k, together

\b
Those that train:
  demonstrations-cut, no-bootstrap, leak, no-bootstrap-and-leak, kl-to-old,
  top-k-play, dropout, chosen-on-test"""

SIZES = """\b
Sizes of eval-gap, as KEY=VALUE, with their defaults:
  policy=ppo, fold=dev, games=1000, few_games=20, window=11, top_k=50,
  answer_tokens=15, seeds=3, sft_games=900, sft_batch=32, iterations=30,
  episodes=128, minibatches=6, arm_games=300, curve_every=5, kl_coef=0.05,
  lora_rank=4, lora_alpha=32, lora_rate=10.0, dropout=0.25, bootstrap=2000

\b
Those of second-visit:
  policy=ppo, fold=dev, train_games=0, games=300, places=25, notes=1,
  visit_limit=0, lessons=8, lesson_rate=0.0005, iterations=40,
  episodes=128, dev_games=200, seeds=3, bootstrap=2000

docs/settings.md says what they mean."""
