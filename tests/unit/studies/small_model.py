"""A model of eight layers and its job, for tests that play what is slow."""

from tangram_sim.training.job import Job

SMALL = """\
name: small
hidden: 512
vocab: 4000
max_seq: 2048
layers:
  - {count: 8, attention: {heads: 8}, feed_forward: {width: 2048}}
"""
JOB = Job(global_batch=16, seq=512, dtype="fp16")
