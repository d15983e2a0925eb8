"""Does a note about an earlier visit help? Reinforcement learning combined with retrieval, against two controls.

settings    sizes
visits      first visits, the memories made of them, and lessons in following a note
players     the trainings with and without notes, and a player that follows notes word by word
table       rates, differences and their intervals; the table
main        everything together
"""
