"""The order of the documentation: by workload, then by question. The site and its contents follow it."""

# Pages of how-to by what a reader is about.
QUESTIONS = {
    "Train": (
        "read-a-plan", "plan-on-a-page", "plan-at-scale", "export-a-plan", "fine-tune", "compare-planners",
        "choose-a-checkpoint-period", "plan-on-spot", "find-slow-ranks", "cap-power",
    ),
    "Serve": ("plan-a-service", "size-a-service", "simulate-a-service", "check-a-service", "serve-by-day"),
    "Post-train": ("plan-post-training",),
    "Buy and rent": ("buy-gpus", "train-from-nothing"),
    "Validate and calibrate": (
        "validate-published", "validate-mixed", "validate-on-a-testbed", "calibrate-with-your-runs",
        "calibrate-collectives",
    ),
    "Script and extend": (
        "script-it", "move-python-code", "add-a-gpu", "add-a-cluster", "add-a-model", "add-a-parallelizer",
        "add-a-schedule", "add-a-verb",
    ),
}  # fmt: skip
THEORY = {
    "models": "Training: theory",
    "serving": "Serving: theory",
    "post-training": "Post-training: theory",
}
