"""Train a real transformer for some steps under a plan file: `python validate/run.py plan.json`."""

from tangram_validate.cli.testbed import run_main

if __name__ == "__main__":
    run_main()
