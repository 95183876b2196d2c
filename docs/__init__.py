"""Documentation; as a package only so that tests can run the snippets of its pages."""
