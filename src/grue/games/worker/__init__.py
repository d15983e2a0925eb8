"""Games in processes of their own: the game on this side, the processes, and what runs in them."""
