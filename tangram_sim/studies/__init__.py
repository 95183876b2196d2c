"""Questions people ask: plan this, estimate that layout, replay a plan, explain it."""
