"""Judgements and training pairs from click logs (`osn data from-clicks`).

from_clicks.py    the command
logs.py           reads click logs
position_bias.py  corrects for the rank at which a hit was shown
"""
