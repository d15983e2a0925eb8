"""Training: the shared optimiser step (`learner`), supervised fine-tuning (`sft`), PPO (`ppo`)."""
