"""Python functions behind the commands: plan, estimate, simulate, explain and the others."""
