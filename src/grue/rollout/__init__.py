"""Playing many games with one policy (`collect`) and laying episodes out for training (`pack`)."""
