"""Z-machine story files through Jericho (Hausknecht et al. 2020): the adapter, valid actions, what memory tells."""
