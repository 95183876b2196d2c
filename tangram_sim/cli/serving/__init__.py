"""`tangram serve`: serving of models (inference) on GPUs of different kinds."""
