"""Training: the job, the plan, its schedules, and a step of it as a graph of ops."""
