"""Judgements and training pairs of click logs (`osn data from-clicks`): logs.py reads, position_bias.py corrects."""
