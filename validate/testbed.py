"""Build the emulated cluster of a scenario until interrupted: `python validate/testbed.py NAME`."""

from tangram_validate.cli.testbed import testbed_main

if __name__ == "__main__":
    testbed_main()
