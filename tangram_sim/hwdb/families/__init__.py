"""Families of the Hugging Face hub: conversion of each family's config.json to a Model.

One file per group of families; every function takes a `Config` and returns a `Model`. Defaults of missing
keys and tensor shapes are those of transformers 5 (`configuration_*.py`, `modeling_*.py` of each family).
"""
