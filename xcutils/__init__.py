"""The library: losses, samplers, encoders, search and metrics as functions of arrays, in rooms of one duty each.

core    errors, ragged arrays, parameters, artifacts, scratch, threads and devices; knows no other room
data    readers of datasets
model   tokens, checkpoints, encoders, row tables
search  nearest vectors, exact or through a graph, and what a ranking is worth
train   losses, samplers, mining, clustering, the one training loop
rank    several searches fused into one ranking, and its score

Every room may import core; train and rank import model and search too. No other room is imported, and no stage.
"""
