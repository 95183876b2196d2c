"""Training: the job, the plan, pipeline schedules, and one step as an op graph."""
