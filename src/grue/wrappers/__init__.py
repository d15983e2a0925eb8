"""Games for other libraries: Gymnasium (`gym`), Stable-Baselines3 (`sb3`), TRL (`trl`). Each is imported by itself."""
