"""`tangram rl`: post-training with reinforcement learning on GPUs of different kinds."""
