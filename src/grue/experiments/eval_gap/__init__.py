"""Why a policy does worse in evaluation than in collection: each suspect measured alone, in a repaired pipeline.

settings    sizes
prompts     prompts as a first notebook builds them: windows, cuts, retokenised text
player      plays with such prompts, choosing among the valid actions or writing freely
defects     credit, sampling and a game with the defects of the notebook
arms        short SFT and PPO trainings with one switch changed
measure     fills the cells that need an existing run only
contrasts   cells in, differences with intervals out
few_games   what is reported from few games, and what choosing on them adds
table       the ranked table
main        which cells a contrast needs; everything together
"""
