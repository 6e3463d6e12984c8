"""The evidence for TOME: two stages of writing URLs against one.

command.py   `osn paper tome`: the parts and the goals
training.py  the trainings: T5s by span corruption, a query generator, the arms
decoding.py  a set's rows: runs of each way to decode, where quality is lost, the time of a query, and the rivals
"""
