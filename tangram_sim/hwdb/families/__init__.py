"""Families of the Hugging Face hub: how each one's config.json describes a model.

One file per group of families; every function takes a `Config` and gives a `Model`. Defaults of missing
keys and tensor shapes are those of transformers 5 (`configuration_*.py`, `modeling_*.py` of each family).
"""
