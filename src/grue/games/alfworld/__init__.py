"""ALFWorld (Shridhar et al. 2021): the adapter, data, the engine made faster, the expert; small homes of our own."""
